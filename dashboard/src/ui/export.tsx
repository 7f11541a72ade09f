// Save tables as CSV and charts as pictures.
import { useRef, useState } from "preact/hooks";
import { readText, type ApiError } from "../api/client";
import { csvOf, fileName } from "./csv";
import { t } from "../i18n/text";
import { Icon } from "./icons";

/** Download some data as a file. */
export function saveFile(name: string, data: Blob): void {
  const address = URL.createObjectURL(data);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(address);
}

export function saveCsv(
  name: string,
  rows: readonly (readonly (string | number | null)[])[],
): void {
  saveFile(fileName(name, "csv"), new Blob([csvOf(rows)], { type: "text/csv" }));
}

export function savePng(name: string, canvas: HTMLCanvasElement): void {
  canvas.toBlob((data) => data && saveFile(fileName(name, "png"), data));
}

/** Return the cells of a table as text. */
function tableRows(table: HTMLTableElement): string[][] {
  return [...table.rows].map((row) =>
    [...row.cells].map((each) => {
      const copy = each.cloneNode(true) as HTMLElement;
      // The headings of sorted columns are there a second time for paper.
      copy.querySelectorAll(".print-only, .arrow, .sr").forEach((part) => part.remove());
      copy.querySelectorAll("div, br").forEach((part) => part.before(" "));
      return (copy.textContent ?? "").replace(/\s+/g, " ").trim();
    }),
  );
}

/** A button that saves the table of its card: all of `address`, or the rows that are shown. */
export function TableCsv(props: { address?: string | undefined }) {
  const button = useRef<HTMLButtonElement>(null);
  const [problem, setProblem] = useState("");
  const save = () => {
    const card = button.current?.closest(".card");
    const name = card?.querySelector("h2")?.textContent ?? "table";
    if (props.address)
      return readText(props.address, "text/csv")
        .then((text) => {
          saveFile(fileName(name, "csv"), new Blob([text], { type: "text/csv" }));
          setProblem("");
        })
        .catch((error: ApiError) => setProblem(error.message));
    const table = card?.querySelector("table");
    if (table) saveCsv(name, tableRows(table));
    setProblem(table ? "" : t("There is no table to save."));
    return undefined;
  };
  return (
    <span class="page-tools table-csv">
      {problem && (
        <span class="small failed-words" role="alert">
          {problem}
        </span>
      )}
      <button
        class="button icon ghost"
        ref={button}
        onClick={save}
        title={t("Save the table as CSV")}
        aria-label={t("Save the table as CSV")}
      >
        <Icon name="download" />
      </button>
    </span>
  );
}
