// What the usage page shows, from its address: the days, the grouping, and how deep somebody has looked.
import type { ReportRow } from "../../api/types";
import { t } from "../../i18n/text";
import type { Zone } from "../../state/session";
import { lastDays, monthOf, type Days } from "../period";

export type Query = Record<string, string>;

export const PERIODS = [
  ["today", t("Today")],
  ["7d", t("{n} days", { n: 7 })],
  ["30d", t("{n} days", { n: 30 })],
  ["month", t("Month")],
  ["dates", t("Dates")],
] as const;
export type Period = (typeof PERIODS)[number][0];

export const GROUPS = [
  ["namespace", t("Namespace")],
  ["label", t("Label")],
  ["annotation", t("Annotation")],
  ["workload", t("Workload")],
] as const;
export type Group = (typeof GROUPS)[number][0];

export const METRICS = [
  ["hours", t("GPU hours")],
  ["cost", t("Cost")],
  ["energy", t("Energy")],
] as const;
export type Metric = (typeof METRICS)[number][0];

/** Return the days of a query in a zone. */
export function daysOf(query: Query, zone: Zone, now = Date.now()): Days {
  const { period = "7d", month, from, to } = query;
  if (period === "today") return lastDays(1, now, zone);
  if (period === "30d") return lastDays(30, now, zone);
  if (period === "month") return monthOf(month ?? "", now, zone);
  const week = lastDays(7, now, zone);
  return period === "dates" ? { first: from ?? week.first, last: to ?? week.last } : week;
}

/** Return the name of a group; a label without a value has none. */
export function rowName(row: { name: string }): string {
  return row.name || t("none");
}

/** Return the value of a row in a metric. */
export function valueOf(row: ReportRow, metric: Metric): number {
  return metric === "hours" ? row.gpu_hours : metric === "cost" ? row.cost : (row.energy_kwh ?? 0);
}

/** Identify a workload by kind and name: each of its runs has a uid of its own. */
export function workloadKey(row: { kind: string; name: string }): string {
  return `${row.kind}/${row.name}`;
}

/** A row of the table: a group, a workload with several runs, or one run. */
export interface UsageRow extends ReportRow {
  runs: number;
}

/** Merge the runs of each workload, weighting utilization by GPU hours. */
export function mergedRuns(rows: readonly ReportRow[]): UsageRow[] {
  const found = new Map<string, UsageRow>();
  for (const row of rows) {
    const key = `${row.row} ${row.namespace} ${workloadKey(row)}`;
    const known = found.get(key);
    found.set(key, known && row.kind ? added(known, row) : { ...row, runs: 1 });
  }
  return [...found.values()];
}

function added(sum: UsageRow, row: ReportRow): UsageRow {
  const hours = sum.gpu_hours + row.gpu_hours;
  const known = [sum, row].filter((each) => each.avg_utilization !== null);
  const weight = known.reduce((all, each) => all + each.gpu_hours, 0);
  const used = known.reduce((all, each) => all + each.gpu_hours * (each.avg_utilization ?? 0), 0);
  const metered = sum.energy_kwh !== null || row.energy_kwh !== null;
  return {
    ...sum,
    uid: "",
    runs: sum.runs + 1,
    gpu_hours: hours,
    idle_gpu_hours: sum.idle_gpu_hours + row.idle_gpu_hours,
    avg_utilization: weight ? used / weight : null,
    cost: sum.cost + row.cost,
    energy_kwh: metered ? (sum.energy_kwh ?? 0) + (row.energy_kwh ?? 0) : null,
    share: sum.share + row.share,
  };
}
