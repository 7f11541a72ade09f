// What a report becomes on the page. The table shows its rows and the chart its lines; the server
// makes both from the same sums, so that they agree to the digit.
import type { Report, ReportRow } from "../api/types";
import type { Line } from "../charts/align";

/** Those who held GPUs: groups, others together, and what belongs to no group. */
export function heldBy(report: Report): ReportRow[] {
  return report.rows.filter(
    (row) => row.row !== "unallocated" && (row.row !== "unattributed" || row.gpu_hours !== 0),
  );
}

/** Lines for a stacked chart: the largest groups, and all others as one. */
export function stackOf(report: Report): Line[] {
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

/** What of the hours was held, 0–1. */
export function shareOf(row: ReportRow, report: Report): number {
  const held = report.totals.allocated_gpu_hours;
  return held ? row.gpu_hours / held : 0;
}

/** Let the browser save a text as a file. */
export function save(name: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(address);
}
