// What is printed: the server's report of the same days and grouping instead of the page, however printing is started.
import { useEffect, useRef } from "preact/hooks";
import { readText } from "../../api/client";
import type { Report } from "../../api/types";
import { isKnownTeam, teamColours } from "../../charts/colours";

/**
 * Keep the report at `address` in the document, visible on paper only, and return a function that prints it. It is
 * read again when `shown`, the report on the screen, changes. Without it, the page itself is printed.
 */
export function usePrintedReport(
  address: string | null,
  shown: Report | undefined,
): () => Promise<void> {
  const loading = useRef<Promise<void>>(Promise.resolve());
  useEffect(() => {
    if (!address || !shown) return;
    let remove: (() => void) | undefined;
    let ended = false;
    loading.current = readText(address, "text/html").then(
      (text) => {
        if (!ended) remove = insert(text);
      },
      () => undefined,
    );
    return () => {
      ended = true;
      remove?.();
    };
  }, [address, shown]);
  return () => loading.current.then(() => window.print());
}

/** Give the groups of a report the colours that they have on the page. */
function recolour(report: Document): void {
  const keys = [...report.querySelectorAll(".legend li")].map((item) => ({
    name: item.textContent?.trim() ?? "",
    colour: item.querySelector("rect")?.getAttribute("fill") ?? "",
  }));
  const own = teamColours(keys.map(({ name }) => name).filter(isKnownTeam), "light");
  const changed = new Map(
    keys.flatMap(({ name, colour }) => (own.has(name) ? [[colour, own.get(name) ?? ""]] : [])),
  );
  for (const shape of report.querySelectorAll("svg [fill]")) {
    const colour = changed.get(shape.getAttribute("fill") ?? "");
    if (colour) shape.setAttribute("fill", colour);
  }
}

/** Add a report to the document and return a function that removes it. */
function insert(text: string): () => void {
  // Inline styles are not allowed on this page, style sheets made by scripts are.
  const sheets: CSSStyleSheet[] = [];
  const content = text.replace(/<style[^>]*>(.*?)<\/style>/gs, (_, rules: string) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(rules);
    sheets.push(sheet);
    return "";
  });
  const [paper, ...inside] = sheets;
  const parsed = new DOMParser().parseFromString(content, "text/html");
  recolour(parsed);
  const host = document.createElement("div");
  host.className = "printed-report";
  const root = host.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = inside;
  root.append(...parsed.body.children);
  document.body.append(host);
  if (paper) document.adoptedStyleSheets.push(paper);
  return () => {
    host.remove();
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => sheet !== paper);
  };
}
