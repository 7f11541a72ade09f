// The totals of the period, each compared with the period before.
import type { ComponentChildren } from "preact";
import type { Report } from "../../api/types";
import { t } from "../../i18n/text";
import { NONE, count, decimal, money, percent } from "../../ui/format";
import { formatDays, type Days } from "../period";

export function Totals(props: { report: Report; before: Report | undefined; daysBefore: Days }) {
  const { totals, currency } = props.report;
  const share = totals.allocated_gpu_hours ? totals.idle_gpu_hours / totals.allocated_gpu_hours : 0;
  const change = (field: "allocated_gpu_hours" | "idle_gpu_hours" | "cost" | "energy_kwh") => (
    <Change
      now={perHour(props.report, field)}
      before={props.before && perHour(props.before, field)}
      than={props.daysBefore}
    />
  );
  return (
    <div class="grid stats usage-stats">
      <Stat
        label={t("Allocated GPU hours")}
        value={count(totals.allocated_gpu_hours)}
        sub={t("{share} of {hours} available", {
          share: percent(totals.allocation_rate / 100, 1),
          hours: count(totals.capacity_gpu_hours),
        })}
      >
        {change("allocated_gpu_hours")}
      </Stat>
      <Stat
        label={t("Utilization (allocated GPUs)")}
        value={percent(totals.avg_utilization === null ? null : totals.avg_utilization / 100)}
        sub={t("weighted by GPU hours")}
      >
        <Points
          now={totals.avg_utilization}
          before={props.before?.totals.avg_utilization}
          than={props.daysBefore}
        />
      </Stat>
      <Stat
        label={t("Idle GPU hours")}
        value={count(totals.idle_gpu_hours)}
        sub={t("{share} of allocated GPU hours", { share: percent(share, 1) })}
      >
        {change("idle_gpu_hours")}
      </Stat>
      <Stat
        label={t("Cost")}
        value={totals.cost > 0 ? money(totals.cost, currency) : NONE}
        sub={
          totals.cost > 0
            ? t("{cost} per allocated GPU hour", {
                cost: money(totals.cost / totals.allocated_gpu_hours, currency, 2),
              })
            : t("no prices configured")
        }
      >
        {totals.cost > 0 && change("cost")}
      </Stat>
      {totals.energy_kwh !== null && (
        <Stat
          label={t("Energy of allocated GPUs")}
          value={`${count(totals.energy_kwh)} kWh`}
          sub={t("{energy} kWh per GPU hour", {
            energy: decimal(totals.energy_kwh / (totals.allocated_gpu_hours || 1), 2),
          })}
        >
          {change("energy_kwh")}
        </Stat>
      )}
    </div>
  );
}

/** Return a total per observed hour, so that an unfinished period compares with a whole one. */
function perHour(
  report: Report,
  field: "allocated_gpu_hours" | "idle_gpu_hours" | "cost" | "energy_kwh",
): number | null {
  const value = report.totals[field];
  return value === null || !report.hours_accounted ? null : value / report.hours_accounted;
}

function Change(props: { now: number | null; before: number | null | undefined; than: Days }) {
  if (props.now === null || !props.before) return null;
  const change = props.now / props.before - 1;
  const words = `${change < 0 ? "−" : "+"}${percent(Math.abs(change), 1)}`;
  return <Against words={words} than={props.than} note={t("per observed hour")} />;
}

function Points(props: { now: number | null; before: number | null | undefined; than: Days }) {
  if (props.now === null || props.before == null) return null;
  const change = props.now - props.before;
  const words = t("{change} points", {
    change: `${change < 0 ? "−" : "+"}${decimal(Math.abs(change))}`,
  });
  return <Against words={words} than={props.than} note="" />;
}

function Against(props: { words: string; than: Days; note: string }) {
  return (
    <span class="stat-sub num" title={props.note || undefined}>
      <b>{props.words}</b>{" "}
      <span class="muted">{t("against {days}", { days: formatDays(props.than) })}</span>
    </span>
  );
}

function Stat(props: { label: string; value: string; sub: string; children?: ComponentChildren }) {
  return (
    <div class="card stat">
      <span class="stat-label">{props.label}</span>
      <span class="stat-value">{props.value}</span>
      <span class="stat-sub num">{props.sub}</span>
      {props.children}
    </div>
  );
}
