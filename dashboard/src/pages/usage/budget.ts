// Budgets of GpuQueues: how much is left, and when it will be used up at the forecast demand. Pure.
import type { Forecast, QueueList, Report } from "../../api/types";
import { t } from "../../i18n/text";

type Queue = QueueList["data"][number];

const HOURS: Record<string, number> = { Day: 24, Week: 168, Month: 730, Quarter: 2190, Year: 8760 };

export interface BudgetLine {
  name: string;
  metric: "hours" | "cost";
  total: number;
  /** The length of its period in hours. */
  hours: number;
}

/** Return the namespaces whose use counts for the budget of a queue: a department has those of its queues, too. */
export function namespacesOf(queue: Queue, queues: readonly Queue[]): string[] {
  const members = queues.filter((each) => each === queue || each.parent === queue.name);
  return members.flatMap((each) => each.namespaces);
}

/** Return whether a budget is used up; a hard one ends its units a little before 100%. */
export function isUsedUp(queue: Queue): boolean {
  const { budget } = queue;
  if (!budget) return false;
  const ended = queue.conditions.some(
    (each) => each.type === "WithinBudget" && each.status === "False",
  );
  return ended || budget.used >= budget.total;
}

/** Return the budget that applies to a namespace, that of its queue first; undefined if none does. */
export function budgetOf(queues: readonly Queue[], namespace: string): BudgetLine | undefined {
  const limited = queues.filter((each) => each.budget);
  const queue =
    limited.find((each) => each.namespaces.includes(namespace)) ??
    limited.find((each) => namespacesOf(each, queues).includes(namespace));
  if (!queue?.budget) return undefined;
  return {
    name: t("budget of queue {queue}", { queue: queue.name }),
    metric: queue.budget.unit === "cost" ? "cost" : "hours",
    total: queue.budget.total,
    hours: HOURS[queue.budget.period] ?? HOURS["Month"] ?? 730,
  };
}

/** Return the use per hour that would spend the budget exactly. */
export function rateOf(budget: BudgetLine): number {
  return budget.total / budget.hours;
}

/** Return what a GPU hour of these namespaces cost in a report; 0 without prices. */
export function priceOf(report: Report, namespaces: readonly string[]): number {
  const own = report.rows.filter((row) => row.row === "group" && namespaces.includes(row.name));
  const hours = own.reduce((sum, row) => sum + row.gpu_hours, 0);
  const cost = own.reduce((sum, row) => sum + row.cost, 0);
  if (hours) return cost / hours;
  const { allocated_gpu_hours: all, cost: paid } = report.totals;
  return all ? paid / all : 0;
}

export interface Spending {
  /** When the budget will be used up, in milliseconds; null if it lasts as far as the forecast goes. */
  at: number | null;
  /** The end of the forecast. */
  until: number;
}

/** Return when the rest of a budget will be used up; null without a forecast for its namespaces. */
export function spendingOf(
  budget: Queue["budget"],
  namespaces: readonly string[],
  forecast: Forecast,
  price: number,
): Spending | null {
  const groups = forecast.data.filter(
    (group) => namespaces.includes(group.name) && group.points.length,
  );
  if (!budget || !groups.length) return null;
  const perHour = budget.unit === "cost" ? price : 1;
  let left = budget.total - budget.used;
  const points = groups[0]?.points ?? [];
  const until = Date.parse(points.at(-1)?.time ?? "");
  if (!perHour) return null;
  for (let place = 0; place < points.length; place++) {
    left -= perHour * groups.reduce((sum, group) => sum + (group.points[place]?.expected ?? 0), 0);
    if (left <= 0) return { at: Date.parse(points[place]?.time ?? ""), until };
  }
  return { at: null, until };
}
