// Usage page: GPU hours, utilization and cost of any days by namespace, label, annotation or workload.
import { useMemo, useState } from "preact/hooks";
import { addressOf, readText, type ApiError, type Params } from "../api/client";
import type { Report, ReportRow } from "../api/types";
import { Lines } from "../charts/lines";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { parseSort, sorted, type Sort } from "../state/sort";
import { NONE, count, decimal, money, percent, short, withUnit } from "../ui/format";
import { Icon } from "../ui/icons";
import { Card, Choice, Empty, PageHead, Pager, Select, Loaded } from "../ui/components";
import { SortHead } from "../ui/sort";
import { allocatedRows, coverageText, save, stackedLines } from "./report";
import { formatDays, lastDays, monthOf, periodOf, type Days } from "./period";
import { Waste } from "./waste";

const LINES = 7;
const MAX_GROUPS = 500;
const SIZE = 20;
const REPORT = "api/v1/gpu-aggregation/report";
const PERIODS = [
  ["today", "Today"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["month", "Month"],
  ["dates", "Dates"],
] as const;
type Period = (typeof PERIODS)[number][0];
const GROUPS = [
  ["namespace", "Namespace"],
  ["label", "Label"],
  ["annotation", "Annotation"],
  ["workload", "Workload"],
] as const;
type Group = (typeof GROUPS)[number][0];
const UNAVAILABLE = "This server has no hourly statistics";

export function UsagePage(props: { query: Record<string, string> }) {
  const { query } = props;
  const { cluster, by = "namespace" } = query;
  const days = daysOf(query); // on every render: the day changes at midnight
  const labelled = by === "label" || by === "annotation";
  const keys = useResource<string[]>(labelled ? "api/v1/gpu-aggregation/dimension-keys" : null, {
    cluster,
    dimension_type: by,
  });
  const key = query["key"] || keys.data?.[0] || "";
  const params = { cluster, period: periodOf(days), group_by: labelled ? `${by}:${key}` : by };
  const report = useResource<Report>(
    labelled && !key ? null : REPORT,
    { ...params, series: LINES, groups: MAX_GROUPS },
    { every: 300_000 },
  );
  return (
    <>
      <PageHead title="Usage" sub={subtitle(days, report.data)}>
        <Choice
          label="Group by"
          value={by as Group}
          options={GROUPS}
          onChange={(value) =>
            setQuery({
              by: value === "namespace" ? undefined : value,
              key: undefined,
              page: undefined,
            })
          }
        />
        {labelled && !!keys.data?.length && (
          <Select
            label="Key"
            value={key}
            options={keys.data}
            onChange={(value) => setQuery({ key: value })}
          />
        )}
        <PeriodChoice query={query} days={days} />
      </PageHead>
      {labelled && keys.data?.length === 0 ? (
        <Card>
          <Empty title={`No ${by} keys are configured`}>
            Add keys to the accounting settings. Rows appear after the next full hour.
          </Empty>
        </Card>
      ) : (
        <Loaded
          of={labelled && keys.error ? { ...report, error: keys.error } : report}
          missing={UNAVAILABLE}
          lines={9}
        >
          {(data) => (
            <UsageReport
              report={data}
              heading={labelled ? key : by}
              params={params}
              query={query}
              days={days}
            />
          )}
        </Loaded>
      )}
      {report.data && report.data.totals.allocated_gpu_hours > 0 && (
        <Waste
          days={days}
          query={query}
          priced={report.data.totals.cost > 0}
          currency={report.data.currency}
        />
      )}
    </>
  );
}

function PeriodChoice(props: { query: Record<string, string>; days: Days }) {
  const { query, days } = props;
  const period = (query["period"] ?? "7d") as Period;
  const choose = (value: Period) =>
    setQuery({
      period: value === "7d" ? undefined : value,
      month: undefined,
      page: undefined,
      waste: undefined,
      from: value === "dates" ? days.first : undefined,
      to: value === "dates" ? days.last : undefined,
    });
  const date = (field: "from" | "to", label: string, value: string) => (
    <input
      class="field"
      type="date"
      aria-label={label}
      value={value}
      onInput={(event) =>
        event.currentTarget.value && setQuery({ [field]: event.currentTarget.value })
      }
    />
  );
  return (
    <>
      <Choice label="Period" value={period} options={PERIODS} onChange={choose} />
      {period === "month" && (
        <input
          class="field"
          type="month"
          aria-label="Month"
          value={query["month"] ?? days.first.slice(0, 7)}
          onInput={(event) =>
            event.currentTarget.value && setQuery({ month: event.currentTarget.value })
          }
        />
      )}
      {period === "dates" && (
        <span class="dates">
          {date("from", "First day", days.first)} – {date("to", "Last day", days.last)}
        </span>
      )}
    </>
  );
}

function daysOf(query: Record<string, string>): Days {
  const { period = "7d", month, from, to } = query;
  if (period === "today") return lastDays(1);
  if (period === "30d") return lastDays(30);
  if (period === "month") return monthOf(month ?? "");
  const week = lastDays(7);
  return period === "dates" ? { first: from ?? week.first, last: to ?? week.last } : week;
}

function subtitle(days: Days, report: Report | undefined): string {
  return [`${formatDays(days)}, UTC`, ...(report ? [coverageText(report)] : [])]
    .filter(Boolean)
    .join(" · ");
}

function UsageReport(props: {
  report: Report;
  heading: string;
  params: Params;
  query: Record<string, string>;
  days: Days;
}) {
  const { report, heading } = props;
  const lines = useMemo(() => stackedLines(report), [report]);
  if (!report.hours_accounted) {
    return (
      <Card>
        <Empty icon="clock" title="No statistics for these days">
          Hourly rows appear two minutes after the end of the hour.
        </Empty>
      </Card>
    );
  }
  const daily = report.series?.step === "day";
  return (
    <>
      <Totals report={report} />
      <div class="grid">
        <Card
          title={daily ? "GPU hours per day" : "Allocated GPUs"}
          note={daily ? "days in UTC" : "hourly mean"}
        >
          <Lines
            lines={lines}
            stacked
            bars={daily}
            label={`GPUs allocated by ${heading}`}
            height={280}
            format={short}
            {...axisOf(props.days, daily)}
          />
        </Card>
      </div>
      <div class="grid">
        <Card
          title={`GPU hours by ${heading}`}
          flush
          aside={<Tools params={props.params} heading={heading} />}
        >
          <Table
            report={report}
            heading={heading}
            sort={parseSort(props.query["sort"], "-hours")}
            page={Number(props.query["page"] ?? "1")}
          />
        </Card>
      </div>
    </>
  );
}

/** Return the time axis for days: up to now, whatever hours have statistics. */
function axisOf(days: Days, daily: boolean): { from: number; to: number; step?: number } {
  const [first, last] = [Date.parse(days.first) / 1000, Date.parse(days.last) / 1000];
  const today = Math.min(last, Math.max(first, Math.floor(Date.now() / 86_400_000) * 86_400));
  if (daily) return { from: first, to: today };
  const end = Math.min(last + 86_400, Math.max(first + 3600, Date.now() / 1000));
  return { from: first, to: end, step: 3600 };
}

function Totals(props: { report: Report }) {
  const { totals, currency } = props.report;
  const share = totals.allocated_gpu_hours ? totals.idle_gpu_hours / totals.allocated_gpu_hours : 0;
  return (
    <div class="grid stats">
      <Stat
        label="Allocated GPU hours"
        value={count(totals.allocated_gpu_hours)}
        sub={`${decimal(totals.allocation_rate)}% of ${count(totals.capacity_gpu_hours)} available`}
      />
      <Stat
        label="Utilization (allocated GPUs)"
        value={percent(rate(totals.avg_utilization))}
        sub="weighted by GPU hours"
      />
      <Stat
        label="Idle GPU hours"
        value={count(totals.idle_gpu_hours)}
        sub={`${percent(share, 1)} of allocated GPU hours`}
      />
      <Stat
        label="Cost"
        value={totals.cost > 0 ? money(totals.cost, currency) : NONE}
        sub={
          totals.cost > 0
            ? `${money(totals.cost / totals.allocated_gpu_hours, currency, 2)} per allocated GPU hour`
            : "no prices configured"
        }
      />
    </div>
  );
}

function Stat(props: { label: string; value: string; sub: string }) {
  return (
    <div class="card stat">
      <span class="stat-label">{props.label}</span>
      <span class="stat-value">{props.value}</span>
      <span class="stat-sub num">{props.sub}</span>
    </div>
  );
}

function Tools(props: { params: Params; heading: string }) {
  const [failed, setFailed] = useState("");
  const saveCsv = () =>
    readText(addressOf(REPORT, { ...props.params, format: "csv" }))
      .then((text) =>
        save(
          `gpu-hours-by-${props.heading}-${props.params["period"]}.csv`.replace(/[^\w.-]+/g, "-"),
          text,
        ),
      )
      .then(() => setFailed(""))
      .catch((error: ApiError) => setFailed(error.message));
  return (
    <span class="page-tools">
      {failed && (
        <span class="small failed-words" role="alert">
          {failed}
        </span>
      )}
      <button class="button" onClick={saveCsv}>
        <Icon name="download" /> CSV
      </button>
      <button class="button" onClick={() => print()}>
        <Icon name="print" /> Print
      </button>
    </span>
  );
}

const VALUES: Record<string, (row: ReportRow) => string | number | null> = {
  name: (row) => row.name,
  hours: (row) => row.gpu_hours,
  utilization: (row) => row.avg_utilization,
  idle: (row) => row.idle_gpu_hours,
  energy: (row) => row.energy_kwh,
  cost: (row) => row.cost,
};

function Table(props: { report: Report; heading: string; sort: Sort; page: number }) {
  const { report, sort } = props;
  const { totals } = report;
  const priced = totals.cost > 0;
  const metered = totals.energy_kwh !== null;
  const rows = useMemo(() => {
    const held = allocatedRows(report);
    return [
      ...sorted(
        held.filter((row) => row.row === "group"),
        sort,
        VALUES,
      ),
      ...held.filter((row) => row.row !== "group"),
    ];
  }, [report, sort.field, sort.down]);
  const page = Math.max(1, Math.min(props.page || 1, Math.ceil(rows.length / SIZE))); // another period may have fewer rows
  const head = { sort, otherwise: "-hours", right: true, down: true };
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label="GPU hours">
        <table>
          <thead>
            <tr>
              <SortHead
                field="name"
                words={capital(props.heading)}
                sort={sort}
                otherwise="-hours"
              />
              <SortHead field="hours" words="GPU hours" {...head} />
              <th class="right">Share of capacity</th>
              <SortHead field="utilization" words="Utilization" {...head} />
              <SortHead field="idle" words="Idle GPU hours" {...head} />
              {metered && <SortHead field="energy" words="Energy (kWh)" {...head} />}
              {priced && (
                <SortHead field="cost" words={withUnit("Cost", report.currency)} {...head} />
              )}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, place) => (
              <tr
                key={`${row.row} ${row.namespace} ${row.kind} ${row.name} ${row.uid}`}
                class={Math.floor(place / SIZE) === page - 1 ? "" : "print-only"}
              >
                <td class="name">
                  <RowName row={row} />
                </td>
                <td class="right">{decimal(row.gpu_hours, 2)}</td>
                <td class="right soft">{percent(row.share / 100, 1)}</td>
                <td class="right">{percent(rate(row.avg_utilization), 1)}</td>
                <td class="right soft">{decimal(row.idle_gpu_hours, 2)}</td>
                {metered && <td class="right">{decimal(row.energy_kwh, 2)}</td>}
                {priced && <td class="right">{decimal(row.cost, 2)}</td>}
              </tr>
            ))}
          </tbody>
          <tfoot>
            <tr class="total">
              <td>Total</td>
              <td class="right">{decimal(totals.allocated_gpu_hours, 2)}</td>
              <td class="right">{percent(totals.allocation_rate / 100, 1)}</td>
              <td class="right">{percent(rate(totals.avg_utilization), 1)}</td>
              <td class="right">{decimal(totals.idle_gpu_hours, 2)}</td>
              {metered && <td class="right">{decimal(totals.energy_kwh, 2)}</td>}
              {priced && <td class="right">{decimal(totals.cost, 2)}</td>}
            </tr>
          </tfoot>
        </table>
      </div>
      {rows.length > SIZE && (
        <Pager
          page={page}
          size={SIZE}
          total={rows.length}
          onChange={(number) => setQuery({ page: number > 1 ? String(number) : undefined })}
        />
      )}
    </>
  );
}

function RowName(props: { row: ReportRow }) {
  const { row } = props;
  if (row.row === "unattributed") return <span class="muted">unattributed</span>;
  if (row.row === "others") return <span class="muted">{row.name}</span>;
  if (!row.kind) return <>{row.name || <span class="muted">none</span>}</>;
  return (
    <>
      {row.uid ? <a href={link(["workloads", row.uid])}>{row.name}</a> : row.name}
      <div class="muted small">
        {row.namespace} · {row.kind}
      </div>
    </>
  );
}

function rate(percents: number | null): number | null {
  return percents === null ? null : percents / 100;
}

function capital(words: string): string {
  return GROUPS.find(([name]) => name === words)?.[1] ?? words;
}
