// Usage page: GPU hours, utilization, cost and energy of any days by namespace, label, annotation or workload,
// compared with the days before, with budgets and a forecast. A namespace opens its workloads, a workload its runs.
import { useMemo } from "preact/hooks";
import { addressOf, type Params } from "../../api/client";
import type { Forecast, QueueList, Report, ReportRow } from "../../api/types";
import { teamColours } from "../../charts/colours";
import { Treemap } from "../../charts/treemap";
import { groupText } from "../../i18n/states";
import { t } from "../../i18n/text";
import { useResource, type Resource } from "../../state/resource";
import { pageOf, setQuery } from "../../state/route";
import { useSession } from "../../state/session";
import { parseSort } from "../../state/sort";
import { Card, Empty, Loaded, PageHead } from "../../ui/components";
import { count, money } from "../../ui/format";
import { Icon } from "../../ui/icons";
import { useTitle } from "../../ui/title";
import { dayOf, daysBefore, formatDays, periodOf, problemOf, zoneName, type Days } from "../period";
import { allocatedRows, coverageText } from "../report";
import { Waste } from "../waste";
import { budgetOf } from "./budget";
import { Budgets } from "./budgets";
import { UsageChart, hasMetric } from "./chart";
import { ReportFaults } from "./faults";
import { FORECAST_DAYS, ForecastCard } from "./forecast";
import { Crumbs, Grouping, PeriodChoice } from "./head";
import {
  daysOf,
  groupOf,
  rowName,
  runsOf,
  valueOf,
  workloadKey,
  type Metric,
  type Query,
} from "./query";
import { UsageTable } from "./table";
import { Totals } from "./totals";

const LINES = 7;
const MAX_GROUPS = 500;
const MOST_TILES = 60;
const REPORT = "api/v1/gpu-aggregation/report";
const UNAVAILABLE = t("This server has no hourly statistics");

export function UsagePage(props: { query: Query }) {
  const { query } = props;
  const { cluster, ns, name } = query;
  const { zone } = useSession();
  const by = ns ? "workload" : groupOf(query);
  const days = daysOf(query, zone); // on every render: the day changes at midnight
  const problem = problemOf(days);
  const labelled = by === "label" || by === "annotation";
  const keys = useResource<string[]>(labelled ? "api/v1/gpu-aggregation/dimension-keys" : null, {
    cluster,
    dimension_type: by,
  });
  const key = query["key"] || keys.data?.[0] || "";
  const params = {
    cluster,
    namespace: ns,
    zone: zoneName(zone),
    group_by: labelled ? `${by}:${key}` : by,
    merge_runs: by === "workload" && !name ? "true" : undefined,
    workload: ns && name,
  };
  const path = problem || (labelled && !key) ? null : REPORT;
  const report = useResource<Report>(
    path,
    { ...params, period: periodOf(days), series: LINES, groups: MAX_GROUPS },
    { every: 300_000 },
  );
  const earlier = problem ? days : daysBefore(days);
  const before = useResource<Report>(
    path,
    { ...params, period: periodOf(earlier), series: LINES, groups: MAX_GROUPS },
    { every: 600_000 },
  );
  useTitle([name?.split("/").slice(1).join("/"), ns, t("Usage")].filter(Boolean).join(" · "));
  const range = subtitle(days, zoneName(zone) ?? "UTC", report.data);
  const scope = [report.data?.cluster_name, ns, name].filter(Boolean).join(" · ");
  return (
    <>
      <PageHead
        title={t("Usage")}
        sub={
          <>
            <span class="print-only">{scope && `${scope} · `}</span>
            {range}
          </>
        }
      >
        <Grouping by={by} keys={labelled ? keys.data : undefined} chosen={key} />
        <PeriodChoice query={query} days={days} />
        <button class="button" disabled={!report.data} onClick={() => window.print()}>
          <Icon name="print" /> {t("Print")}
        </button>
      </PageHead>
      <Crumbs query={query} />
      {problem ? (
        <Card>
          <Empty icon="clock" title={problem} />
        </Card>
      ) : labelled && keys.data?.length === 0 ? (
        <Card>
          <Empty
            title={
              by === "label"
                ? t("No label keys are configured")
                : t("No annotation keys are configured")
            }
          >
            {t("Add keys to the accounting settings. Rows appear after the next full hour.")}
          </Empty>
        </Card>
      ) : (
        <Loaded of={failing(report, labelled && keys)} missing={UNAVAILABLE} lines={9}>
          {(data) => (
            <UsageReport
              report={data}
              before={before.data && comparable(before.data) ? before.data : undefined}
              heading={labelled ? key : by}
              params={{ ...params, period: periodOf(days) }}
              query={query}
              days={days}
              daysBefore={earlier}
              caption={[t("Usage"), scope, range].join(" · ")}
            />
          )}
        </Loaded>
      )}
      {report.data && report.data.totals.allocated_gpu_hours > 0 && !ns && (
        <div class="screen-only">
          <Waste
            days={days}
            query={query}
            priced={report.data.totals.cost > 0}
            currency={report.data.currency}
          />
        </div>
      )}
    </>
  );
}

/** Return whether enough of a period was observed to compare with it. */
function comparable(report: Report): boolean {
  return report.hours_accounted >= report.hours_in_period / 2;
}

/** Return the report, or why its keys could not be read. */
function failing(report: Resource<Report>, keys: Resource<string[]> | false): Resource<Report> {
  return keys && keys.error ? { ...report, error: keys.error } : report;
}

function subtitle(days: Days, zone: string, report: Report | undefined): string {
  const range = formatDays(days);
  return [
    range && t("{days}, {zone}", { days: range, zone }),
    ...(report ? [coverageText(report)] : []),
  ]
    .filter(Boolean)
    .join(" · ");
}

function UsageReport(props: {
  report: Report;
  before: Report | undefined;
  heading: string;
  params: Params;
  query: Query;
  days: Days;
  daysBefore: Days;
  /** What each printed page of the table begins with. */
  caption: string;
}) {
  const { report, heading, query } = props;
  const { cluster, ns, name } = query;
  const { zone } = useSession();
  const current = props.days.last >= dayOf(Date.now(), zone);
  const queues = useResource<QueueList>("api/queues", { cluster }, { every: 300_000 });
  const forecast = useResource<Forecast>(
    current ? "api/forecast" : null,
    { cluster, days: FORECAST_DAYS, by: "namespace" },
    { every: 600_000 },
  );
  const whole = useResource<Forecast>(
    current && !ns ? "api/forecast" : null,
    { cluster, days: FORECAST_DAYS },
    { every: 600_000 },
  );
  const metric = metricOf(query, report);
  // All groups get their colours together, so that they do not depend on which are the largest.
  if (heading !== "workload") teamColours(report.rows.map(rowName));
  const rows = useMemo(() => allocatedRows(report), [report]);
  if (!report.hours_accounted) {
    return (
      <Card>
        <Empty icon="clock" title={t("No statistics for these days")}>
          {t("Hourly rows appear two minutes after the end of the hour.")}
        </Empty>
      </Card>
    );
  }
  const list = queues.data?.data ?? [];
  return (
    <>
      {!name && <Totals report={report} before={props.before} daysBefore={props.daysBefore} />}
      <div class="grid">
        <UsageChart
          report={report}
          before={props.before}
          days={props.days}
          daysBefore={props.daysBefore}
          heading={heading}
          metric={metric}
          mode={query["mode"] === "sum" ? "sum" : "time"}
          budget={ns ? budgetOf(list, ns) : undefined}
        />
      </div>
      {!name && (
        <div class={`screen-only ${current ? "grid two" : "grid"}`}>
          <Shares rows={rows} report={report} metric={metric} heading={heading} query={query} />
          {current && (
            <ForecastCard
              forecast={ns ? forecast : whole}
              name={ns ?? ""}
              report={report}
              of={ns ? t("namespace {name}", { name: ns }) : t("all namespaces")}
            />
          )}
        </div>
      )}
      {!ns && (
        <div class="screen-only">
          <Budgets queues={list} forecast={forecast.data} report={report} />
        </div>
      )}
      <div class="grid">
        <Card
          title={
            name
              ? t("Runs")
              : t("{title} by {group}", { title: t("GPU hours"), group: groupText(heading) })
          }
          flush
          csv={addressOf(REPORT, { ...props.params, format: "csv" })}
        >
          <UsageTable
            report={report}
            rows={rows}
            before={heading === "workload" ? undefined : props.before}
            heading={name ? "run" : heading}
            caption={props.caption}
            sort={parseSort(query["sort"], "-hours")}
            page={pageOf(query["page"])}
            open={(row) => opener(row, query)}
          />
        </Card>
      </div>
      {report.faults && !ns && <ReportFaults faults={report.faults} totals={report.totals} />}
    </>
  );
}

/** Return the quantity that is chosen, if the report has it. */
function metricOf(query: Query, report: Report): Metric {
  const wanted = (query["metric"] ?? "hours") as Metric;
  return hasMetric(report, wanted) ? wanted : "hours";
}

/** Return what a click on a row opens: the workloads of a namespace, or the runs of a workload. */
function opener(row: ReportRow, query: Query): (() => void) | undefined {
  if (row.row !== "group") return undefined;
  if (!row.kind && !query["ns"] && groupOf(query) === "namespace")
    return () => setQuery({ ns: row.name, page: undefined, sort: undefined }, true);
  if (row.kind && runsOf(row) > 1)
    return () => setQuery({ ns: row.namespace, name: workloadKey(row), page: undefined }, true);
  return undefined;
}

function Shares(props: {
  rows: ReportRow[];
  report: Report;
  metric: Metric;
  heading: string;
  query: Query;
}) {
  const { metric, report, rows } = props;
  // Cost says most, if there are prices and nothing else is chosen.
  const shown =
    metric === "hours" && !props.query["metric"] && report.totals.cost > 0 ? "cost" : metric;
  const groups = rows
    .filter((row) => row.row === "group")
    .sort((a, b) => valueOf(b, shown) - valueOf(a, shown))
    .slice(0, MOST_TILES);
  const colours = teamColours(
    groups.map(rowName),
    "bars",
    props.heading === "workload" ? "workload" : "team",
  );
  const format = (value: number) =>
    shown === "cost"
      ? money(value, report.currency)
      : shown === "energy"
        ? `${count(value)} kWh`
        : t("{hours} GPU hours", { hours: count(value) });
  const title = t("{title} by {group}", {
    title: { cost: t("Cost"), hours: t("GPU hours"), energy: t("Energy") }[shown],
    group: groupText(props.heading),
  });
  return (
    <Card title={title} note={t("area is proportional")}>
      <Treemap
        label={title}
        items={groups.map((row) => ({
          name: rowName(row),
          value: valueOf(row, shown),
          colour: colours.get(rowName(row)) ?? "",
          open: opener(row, props.query),
        }))}
        format={format}
      />
    </Card>
  );
}
