// A table that scrolls sideways if it must, and becomes a list of cards on a phone.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { t } from "../i18n/text";
import { setQuery } from "../state/route";
import { Select } from "./components";
import { NONE } from "./format";

const SIZES = ["25", "50", "100", "250"];
export const DEFAULT_SIZE = 25;

/** A table with a `thead` and a `tbody` as children. */
export function Table(props: { label: string; children: ComponentChildren }) {
  const table = useRef<HTMLTableElement>(null);
  useLayoutEffect(() => {
    if (table.current) labelCells(table.current);
  });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
      {/* Cards are no table to some browsers, so the roles are given. */}
      <table class="cards" role="table" ref={table}>
        {props.children}
      </table>
    </div>
  );
}

/** Give each cell the name of its column, which cards show before the value. */
function labelCells(table: HTMLTableElement): void {
  const heads = [...(table.tHead?.rows[table.tHead.rows.length - 1]?.cells ?? [])].map(
    (cell) => cell.querySelector("button")?.textContent ?? cell.textContent ?? "",
  );
  for (const row of [...table.rows].filter((each) => each.parentElement !== table.tHead)) {
    row.setAttribute("role", "row");
    [...row.cells].forEach((cell, column) => {
      cell.setAttribute("role", "cell");
      cell.dataset.label = (heads[column] ?? "").replace(/[↑↓]/g, "").trim();
      cell.classList.toggle("no-value", cell.textContent === NONE);
    });
  }
}

/** Return the number of rows of a page that the URL names. */
export function sizeOf(query: Record<string, string>): number {
  return SIZES.includes(query["size"] ?? "") ? Number(query["size"]) : DEFAULT_SIZE;
}

export function PageSize(props: { size: number }) {
  return (
    <Select
      label={t("Rows per page")}
      value={String(props.size)}
      options={SIZES}
      words={Object.fromEntries(SIZES.map((size) => [size, t("{size} rows", { size })]))}
      onChange={(size) =>
        setQuery({
          size: size === String(DEFAULT_SIZE) ? undefined : size,
          page: undefined,
        })
      }
    />
  );
}
