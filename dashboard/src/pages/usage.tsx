// Who used how many GPU hours, and how well: any period, by namespace, label, annotation or workload.
import { useMemo } from "preact/hooks";
import type { GroupHour, Paged } from "../api/accounting";
import { Lines } from "../charts/lines";
import { useResource, type Resource } from "../state/resource";
import { setQuery } from "../state/route";
import { NONE, decimal, percent, short } from "../ui/format";
import { Icon } from "../ui/icons";
import { Card, Choice, Empty, PageHead, Select, Shown } from "../ui/parts";
import { accounts, csvOf, stackOf, type Account } from "./books";
import { lastHours, monthOf } from "./period";

const SERIES = 7;
const PERIODS = [
  ["24h", "24 hours"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["month", "Month"],
] as const;
const GROUPS = [
  ["namespace", "Namespace"],
  ["label", "Label"],
  ["annotation", "Annotation"],
  ["workload", "Workload"],
] as const;
type Group = (typeof GROUPS)[number][0];
const HOURS: Record<string, number> = { "24h": 24, "7d": 168, "30d": 720 };
const NOT_THERE = "This server keeps no hourly statistics";

export function UsagePage(props: { query: Record<string, string> }) {
  const { cluster, period = "7d", by = "namespace", month = thisMonth() } = props.query;
  const group = by as Group;
  const span = useMemo(() => (period === "month" ? monthOf(month) : lastHours(HOURS[period] ?? 168)), [period, month]);
  const labelled = group === "label" || group === "annotation";
  const keys = useResource<string[]>(labelled ? "api/v1/gpu-aggregation/dimension-keys" : null, {
    cluster,
    dimension_type: group,
    ...span,
  });
  const key = props.query["key"] || keys.data?.[0] || "";
  const rows = useRows(group, key, { cluster, ...span }, labelled && !key);
  const noKeys = labelled && keys.data?.length === 0;
  return (
    <>
      <PageHead title="Usage" sub="GPU hours held, and how well they were used">
        <Choice label="Group by" value={group} options={GROUPS} onChange={(value) => setQuery({ by: value === "namespace" ? undefined : value, key: undefined })} />
        {labelled && !!keys.data?.length && <Select label="Key" value={key} options={keys.data} onChange={(value) => setQuery({ key: value })} />}
        <Choice
          label="Period"
          value={period as (typeof PERIODS)[number][0]}
          options={PERIODS}
          onChange={(value) => setQuery({ period: value === "7d" ? undefined : value })}
        />
        {period === "month" && (
          <input class="field" type="month" aria-label="Month" value={month} onInput={(event) => setQuery({ month: event.currentTarget.value })} />
        )}
      </PageHead>
      {noKeys ? (
        <Card>
          <Empty title={`No ${group} is accounted for`}>The settings say which keys are; the first hour after that has rows.</Empty>
        </Card>
      ) : (
        <Shown of={labelled && keys.error ? (keys as unknown as Resource<GroupHour[]>) : rows} missing={NOT_THERE} bones={9}>
          {(data) => <Books rows={data} heading={labelled ? key : group} />}
        </Shown>
      )}
    </>
  );
}

function useRows(group: Group, key: string, span: Record<string, string | undefined>, wait: boolean): Resource<GroupHour[]> {
  const base = "api/v1/gpu-aggregation/";
  const plain = useResource<GroupHour[]>(
    wait || group === "workload" ? null : group === "namespace" ? `${base}namespaces/hourly-stats` : `${base}labels/hourly-stats`,
    group === "namespace" ? span : { ...span, dimension_type: group, dimension_key: key },
    { every: 300_000 },
  );
  const paged = useResource<Paged<GroupHour>>(group === "workload" ? `${base}workloads/hourly-stats` : null, { ...span, page_size: 1000 }, { every: 300_000 });
  if (group !== "workload") return plain;
  return { ...paged, data: paged.data?.data };
}

function Books(props: { rows: GroupHour[]; heading: string }) {
  const all = useMemo(() => accounts(props.rows), [props.rows]);
  const lines = useMemo(() => stackOf(all, SERIES), [all]);
  if (!all.length) {
    return (
      <Card>
        <Empty icon="clock" title="No hour was accounted in this period">
          Hourly rows appear two minutes after the hour's end.
        </Empty>
      </Card>
    );
  }
  return (
    <>
      <div class="grid">
        <Card title="GPUs held" note="mean of each hour">
          <Lines lines={lines} stacked label={`GPUs held by ${props.heading}`} height={280} format={short} />
        </Card>
      </div>
      <div class="grid">
        <Card
          title="GPU hours"
          flush
          aside={
            <span class="page-tools">
              <button class="button" onClick={() => download(all, props.heading)}>
                <Icon name="download" /> CSV
              </button>
              <button class="button" onClick={() => print()}>
                <Icon name="print" /> Print
              </button>
            </span>
          }
        >
          <Table all={all} heading={props.heading} />
        </Card>
      </div>
    </>
  );
}

function Table(props: { all: Account[]; heading: string }) {
  const total = props.all.reduce((sum, each) => sum + each.hours, 0);
  const worked = props.all.reduce((sum, each) => sum + each.worked, 0);
  const measured = props.all.reduce((sum, each) => sum + each.measured, 0);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="GPU hours">
      <table>
        <thead>
          <tr>
            <th>{props.heading}</th>
            <th class="right">GPU hours</th>
            <th class="right">Share</th>
            <th class="right">Utilization</th>
            <th class="right">Idle GPU hours</th>
          </tr>
        </thead>
        <tbody>
          {props.all.slice(0, 500).map((account) => (
            <tr key={account.name}>
              <td class="name">{account.name || <span class="muted">none</span>}</td>
              <td class="right">{decimal(account.hours, 2)}</td>
              <td class="right soft">{percent(total ? account.hours / total : 0, 1)}</td>
              <td class="right">{percent(rate(account), 1)}</td>
              <td class="right soft">{account.measured ? decimal(account.measured - account.worked, 2) : NONE}</td>
            </tr>
          ))}
          <tr class="total">
            <td>Total</td>
            <td class="right">{decimal(total, 2)}</td>
            <td class="right">100.0%</td>
            <td class="right">{percent(measured ? worked / measured : null, 1)}</td>
            <td class="right">{decimal(measured - worked, 2)}</td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}

function rate(account: Account): number | null {
  return account.measured ? account.worked / account.measured : null;
}

function download(all: Account[], heading: string): void {
  const rows = all.map((account) => {
    const known = rate(account);
    return [account.name, account.hours.toFixed(2), known === null ? "" : (known * 100).toFixed(2), (account.measured - account.worked).toFixed(2)];
  });
  const text = csvOf([[heading, "gpu_hours", "utilization_percent", "idle_gpu_hours"], ...rows]);
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = `gpu-hours-by-${heading.replace(/[^\w-]+/g, "-")}.csv`;
  anchor.click();
  URL.revokeObjectURL(address);
}

function thisMonth(): string {
  return new Date().toISOString().slice(0, 7);
}
