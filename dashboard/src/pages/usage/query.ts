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

/** Return what a query groups by. */
export function groupOf(query: Query): Group {
  return GROUPS.find(([name]) => name === query["by"])?.[0] ?? "namespace";
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

/** Return how many runs of a workload a row has. */
export function runsOf(row: ReportRow): number {
  return row.runs ?? 1;
}
