// Turn a usage report into table rows and chart lines. The server computes both from the same sums.
import type { Report, ReportRow } from "../api/types";
import type { Line } from "../charts/align";
import { count } from "../ui/format";

/** Return the rows with allocated hours: groups, others combined, and unattributed. */
export function allocatedRows(report: Report): ReportRow[] {
  return report.rows.filter(
    (row) => row.row !== "unallocated" && (row.row !== "unattributed" || row.gpu_hours !== 0),
  );
}

/** Return how many hours were observed unless all were; rounded down, so that a part never looks like all. */
export function coverageText(report: Report): string {
  const { hours_accounted: hours, hours_in_period: all } = report;
  if (hours >= all) return "";
  const tenths = Math.floor(hours * 10 + 1e-6);
  const text =
    hours > 0 && !tenths ? "less than 0.1" : count(Math.floor(tenths / 10)) + fraction(tenths % 10);
  return `${text} of ${count(all)} hours observed`;
}

function fraction(tenths: number): string {
  return tenths ? `.${tenths}` : "";
}

/** Return the lines of a stacked chart: the largest groups, and all others as one. */
export function stackedLines(report: Report): Line[] {
  const series = report.series;
  if (!series) return [];
  const times = series.times.map((time) => Date.parse(time));
  const named = new Set<string>();
  return series.lines.map((line) => {
    const plain = line.row === "others" ? "all others" : line.name || "none";
    const name = named.has(plain) ? `${line.namespace}/${plain}` : plain;
    named.add(name);
    return {
      name,
      quiet: line.row === "others",
      points: line.gpu_hours.map((hours, place) => [hours, times[place] ?? 0] as const),
    };
  });
}

/** Download a text as a file. */
export function save(name: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(address);
}
