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

/** Return the budget that applies to a namespace; undefined if none does. */
export function budgetOf(queues: readonly Queue[], namespace: string): BudgetLine | undefined {
  const queue = queues.find((each) => each.budget && each.namespaces.includes(namespace));
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
export function spendingOf(queue: Queue, forecast: Forecast, price: number): Spending | null {
  const { budget } = queue;
  const groups = forecast.data.filter(
    (group) => queue.namespaces.includes(group.name) && group.points.length,
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
