// Turn a usage report into table rows and chart lines. The server computes both from the same sums.
import type { Report, ReportRow } from "../api/types";
import type { Line } from "../charts/align";
import { t } from "../i18n/text";
import { shortUid } from "../ui/format";

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
  return hours > 0 && !tenths
    ? t("less than {hours} of {all} hours observed", { hours: 0.1, all })
    : t("{hours} of {all} hours observed", { hours: tenths / 10, all });
}

/** What a chart shows over time. */
export type Quantity = "hours" | "cost" | "energy";

type SeriesLine = NonNullable<Report["series"]>["lines"][number];

function amounts(line: SeriesLine, quantity: Quantity): readonly (number | null)[] {
  return quantity === "hours" ? line.gpu_hours : quantity === "cost" ? line.cost : line.energy_kwh;
}

/** Return the lines of a stacked chart: the largest groups, and all others as one. */
export function stackedLines(report: Report, quantity: Quantity = "hours"): Line[] {
  const series = report.series;
  if (!series) return [];
  const times = series.times.map((time) => Date.parse(time));
  const named = new Set<string>();
  const same = (a: SeriesLine, b: SeriesLine) =>
    a.namespace === b.namespace && a.kind === b.kind && a.name === b.name;
  return series.lines.map((line) => {
    const several = line.uid && series.lines.filter((other) => same(line, other)).length > 1;
    const own = several ? `${line.name} ${shortUid(line.uid)}` : line.name || t("none");
    const plain = line.row === "others" ? t("all others") : own;
    const names = [plain, `${line.namespace}/${plain}`, `${line.namespace}/${plain} ${line.uid}`];
    const name = names.find((each) => !named.has(each)) ?? plain;
    named.add(name);
    return {
      name,
      quiet: line.row === "others",
      points: amounts(line, quantity).flatMap((value, place) =>
        value === null ? [] : [[value, times[place] ?? 0] as const],
      ),
    };
  });
}

/** Return the sum of lines at each time. */
export function totalLine(lines: readonly Line[]): [number, number][] {
  const sums = new Map<number, number>();
  for (const line of lines)
    for (const [value, at] of line.points) sums.set(at, (sums.get(at) ?? 0) + value);
  return [...sums].sort(([a], [b]) => a - b).map(([at, value]) => [value, at]);
}

/** Return lines whose points are the sums until then. */
export function cumulative<T extends Line>(lines: readonly T[]): T[] {
  const times = [...new Set(lines.flatMap((line) => line.points.map(([, at]) => at)))].sort(
    (a, b) => a - b,
  );
  return lines.map((line) => {
    const values = new Map(line.points.map(([value, at]) => [at, value]));
    let sum = 0;
    return {
      ...line,
      points: times.map((at) => [(sum += values.get(at) ?? 0), at] as const),
    };
  });
}
