// GPU hours, cost or energy over time: stacked by group, with the period before and the budget as lines.
import { useMemo } from "preact/hooks";
import type { Report } from "../../api/types";
import type { Overlay } from "../../charts/align";
import { teamColours } from "../../charts/colours";
import { Lines } from "../../charts/lines";
import { groupText } from "../../i18n/states";
import { t } from "../../i18n/text";
import { setQuery } from "../../state/route";
import { useSession, type Zone } from "../../state/session";
import { Card, Choice } from "../../ui/components";
import { short, withUnit } from "../../ui/format";
import { cumulative, stackedLines, totalLine } from "../report";
import { addDays, startOf, type Days } from "../period";
import { rateOf, type BudgetLine } from "./budget";
import { METRICS, type Metric } from "./query";

const MODES = [
  ["time", t("Over time")],
  ["sum", t("Cumulative")],
] as const;
const BEFORE = t("period before");
type Mode = (typeof MODES)[number][0];

export function UsageChart(props: {
  report: Report;
  before: Report | undefined;
  days: Days;
  daysBefore: Days;
  heading: string;
  metric: Metric;
  mode: Mode;
  budget: BudgetLine | undefined;
}) {
  const { report, before, metric, mode } = props;
  const { theme, zone } = useSession();
  const daily = report.series?.step === "day";
  const lines = useMemo(() => {
    const found = stackedLines(report, metric);
    return mode === "sum" ? cumulative(found) : found;
  }, [report, metric, mode]);
  const overlays = useMemo(() => {
    const shift = startOf(props.days.first, zone) - startOf(props.daysBefore.first, zone);
    const ends = axisOf(props.days, daily, zone);
    const found: Overlay[] = [];
    if (before?.series && (mode === "time" || isComplete(before))) {
      const total = { name: BEFORE, points: totalLine(stackedLines(before, metric)) };
      const [line] = mode === "sum" ? cumulative([total]) : [total];
      const points = (line?.points ?? [])
        .map(([value, at]) => [value, at + shift] as const)
        .filter(([, at]) => at <= ends.to * 1000);
      if (points.length) found.push({ name: BEFORE, points, colour: "--muted", dash: true });
    }
    if (props.budget && props.budget.metric === metric) {
      const value = mode === "sum" ? props.budget.total : rateOf(props.budget) * (daily ? 24 : 1);
      const points = [ends.from, ends.to].map((at) => [value, at * 1000] as const);
      found.push({ name: props.budget.name, points, colour: "--bad", dash: true });
    }
    return found;
  }, [before, metric, mode, props.budget, props.days.first, props.days.last, zone, daily]);
  const colours = teamColours(
    lines.map((line) => line.name),
    theme,
    props.heading === "workload" ? "workload" : "team",
  );
  const title = titleOf(metric, mode, daily, report.currency);
  return (
    <Card
      title={title}
      note={mode === "time" && !daily && metric === "hours" ? t("hourly mean") : undefined}
      aside={
        <span class="page-tools">
          <Choice
            label={t("Quantity")}
            value={metric}
            options={METRICS.filter(([name]) => hasMetric(report, name))}
            onChange={(value) => setQuery({ metric: value === "hours" ? undefined : value })}
          />
          <Choice
            label={t("Sum")}
            value={mode}
            options={MODES}
            onChange={(value) => setQuery({ mode: value === "time" ? undefined : value })}
          />
        </span>
      }
    >
      <Lines
        lines={lines}
        overlays={overlays}
        colours={colours}
        stacked
        bars={daily && mode === "time"}
        label={t("{title} by {group}", { title, group: groupText(props.heading) })}
        height={280}
        format={short}
        {...axisOf(props.days, daily, zone)}
      />
    </Card>
  );
}

/** Return whether nearly all hours were observed; sums of fewer would mislead. */
function isComplete(report: Report): boolean {
  return report.hours_accounted > 0.95 * report.hours_in_period;
}

export function hasMetric(report: Report, metric: Metric): boolean {
  if (metric === "cost") return report.totals.cost > 0;
  return metric === "hours" || report.totals.energy_kwh !== null;
}

function titleOf(metric: Metric, mode: Mode, daily: boolean, currency: string): string {
  if (metric === "hours" && mode === "time" && !daily) return t("Allocated GPUs");
  const what = { cost: t("Cost"), energy: t("Energy"), hours: t("GPU hours") }[metric];
  const title =
    mode === "sum"
      ? t("{what}, cumulative", { what })
      : daily
        ? t("{what} per day", { what })
        : t("{what} per hour", { what });
  return withUnit(title, { cost: currency, energy: "kWh", hours: "" }[metric]);
}

/** Return the time axis for days: up to now, whatever hours have statistics. */
function axisOf(
  days: Days,
  daily: boolean,
  zone: Zone,
): { from: number; to: number; step?: number } {
  const [first, last] = [startOf(days.first, zone) / 1000, startOf(days.last, zone) / 1000];
  const now = Date.now() / 1000;
  if (daily) {
    const today = now < last ? Math.max(first, now - 86_400 / 2) : last;
    return { from: first, to: Math.min(last, today) };
  }
  const end = startOf(addDays(days.last, 1), zone) / 1000;
  return { from: first, to: Math.min(end, Math.max(first + 3600, now)), step: 3600 };
}
