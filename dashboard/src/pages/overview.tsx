// Overview page.
import { useMemo } from "preact/hooks";
import { useLive } from "../api/events";
import type {
  Change,
  ClusterHour,
  ClusterOverview,
  ConsumerPage,
  GpuMap,
  Heatmaps,
  NodePage,
  WastePage,
} from "../api/types";
import { Lines } from "../charts/lines";
import { Spark } from "../charts/spark";
import { HeatMap } from "../heatmap/heatmap";
import type { Quantity } from "../heatmap/paint";
import { useResource, type Resource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { NONE, count, money, percent, shortModel } from "../ui/format";
import {
  Ago,
  Card,
  Choice,
  Empty,
  Meter,
  PageHead,
  Loaded,
  StaleNote,
  type Tone,
} from "../ui/components";
import { hourAt, lastDays, lastHours, spanOf } from "./period";

const QUANTITIES = [
  ["utilization", "Utilization"],
  ["temperature", "Temperature"],
  ["power", "Power"],
  ["memory", "Memory"],
] as const;
const WEEK = 7 * 24;
const IDLE_BELOW = 5;

export function OverviewPage(props: { query: Record<string, string> }) {
  const cluster = props.query["cluster"];
  const quantity = (props.query["by"] ?? "utilization") as Quantity;
  const overview = useResource<ClusterOverview>(
    "api/clusters/overview",
    { cluster },
    { every: 10_000, on: ["node", "workload", "gpu"] },
  );
  const map = useResource<GpuMap>(
    "api/v1/gpu/map",
    { cluster, quantity },
    { every: 15_000, on: ["gpu", "node"] },
  );
  const week = useResource<ClusterHour[]>(
    "api/v1/gpu-aggregation/cluster/hourly-stats",
    { cluster, ...lastHours(WEEK) },
    { every: 300_000 },
  );
  const faults = useResource<NodePage>(
    "api/nodes",
    { cluster, state: "faulty", pageSize: 6 },
    { every: 20_000, on: ["node", "gpu"] },
  );
  return (
    <>
      <PageHead title="Overview" sub={overview.data ? subtitle(overview.data) : " "} />
      <Stats overview={overview} week={week.data ?? []} />
      <div class="grid">
        <Card
          title="Every GPU"
          note={
            map.data
              ? `${count(map.data.values.length)} on ${count(map.data.nodes.length)} nodes`
              : undefined
          }
          aside={
            <Choice
              label="Colour by"
              value={quantity}
              options={QUANTITIES}
              onChange={(by) => setQuery({ by: by === "utilization" ? undefined : by })}
            />
          }
        >
          <Loaded of={map} lines={7}>
            {(data) =>
              data.values.length ? (
                <HeatMap map={data} />
              ) : (
                <Empty title="No GPUs yet">
                  GPU nodes appear here as soon as a source reports them.
                </Empty>
              )
            }
          </Loaded>
        </Card>
      </div>
      <div class="grid wide-left">
        <Card
          title="Allocation and utilization"
          note="last 7 days, by hour; of all GPUs, of allocated GPUs"
        >
          <Loaded of={week} missing="This server has no hourly statistics" lines={6}>
            {(hours) => <Week hours={hours} />}
          </Loaded>
        </Card>
        <Card
          title="Faults"
          flush
          aside={
            <a class="small muted" href={link(["nodes"], { state: "faulty" })}>
              All faulty nodes
            </a>
          }
        >
          <Loaded of={faults}>{(page) => <Faults page={page} />}</Loaded>
        </Card>
      </div>
      <div class="grid two">
        <Consumers cluster={cluster} />
        <WasteList cluster={cluster} />
      </div>
      <div class="grid two">
        <Hottest cluster={cluster} by={props.query["top"] ?? "power"} />
        <Card title="Recent changes" flush>
          <Feed />
        </Card>
      </div>
    </>
  );
}

function subtitle(overview: ClusterOverview): string {
  return `${count(overview.totalGpus)} GPUs on ${count(overview.totalNodes)} nodes`;
}

function allocationText(overview: ClusterOverview): string {
  return overview.schedulableAllocatedGpus == null
    ? `allocation of ${count(overview.schedulableGpus)} GPUs unknown`
    : `${count(overview.schedulableAllocatedGpus)} of ${count(overview.schedulableGpus)} schedulable GPUs`;
}

function Stats(props: { overview: Resource<ClusterOverview>; week: ClusterHour[] }) {
  const { data, error } = props.overview;
  if (!data && error) {
    return (
      <div class="grid">
        <Card>
          <Loaded of={props.overview}>{() => null}</Loaded>
        </Card>
      </div>
    );
  }
  return (
    <>
      {data && error && <StaleNote at={props.overview.at} error={error} />}
      <div class="grid stats">
        <div class="card stat">
          <span class="stat-label">Allocated (schedulable GPUs)</span>
          <span class="stat-value">{data ? percent(data.allocationRate) : " "}</span>
          <Spark
            values={props.week.map((hour) => hour.allocation_rate)}
            label="Allocated share of all GPUs over 7 days"
          />
          <span class="stat-sub num">{data ? allocationText(data) : " "}</span>
        </div>
        <div class="card stat">
          <span class="stat-label">Utilization (allocated GPUs)</span>
          <span class="stat-value">{data ? percent(data.utilization) : " "}</span>
          <Spark
            values={props.week.flatMap((hour) => hour.avg_utilization ?? [])}
            label="Utilization over 7 days"
          />
          <span class="stat-sub">
            {data && data.utilization == null ? "no readings" : "mean of the latest readings"}
          </span>
        </div>
        <div class="card stat">
          <span class="stat-label">Idle while allocated</span>
          <span class="stat-value">
            {data?.measuredGpus ? count(data.idleGpus) : NONE} <small>GPUs</small>
          </span>
          <span class="stat-sub num">
            {data?.measuredGpus
              ? `${percent(data.idleGpus / data.measuredGpus)} of ${count(data.measuredGpus)} allocated GPUs, below ${IDLE_BELOW}%`
              : "no readings"}
          </span>
        </div>
        <div class="card stat">
          <span class="stat-label">Nodes</span>
          <span class="stat-value">
            {data ? count(data.healthyNodes) : " "} <small>healthy</small>
          </span>
          {data && <NodeSplit overview={data} />}
        </div>
      </div>
    </>
  );
}

const STATES = [
  ["busy", "busyNodes", "full"],
  ["partial", "partiallyIdleNodes", "partly free"],
  ["idle", "fullyIdleNodes", "free"],
  ["faulty", "faultyNodes", "faulty"],
] as const;

function NodeSplit(props: { overview: ClusterOverview }) {
  return (
    <>
      <div class="split" aria-hidden="true">
        {STATES.map(([state, field]) =>
          props.overview[field] ? (
            <span key={state} class={`s-${state}`} style={{ flexGrow: props.overview[field] }} />
          ) : null,
        )}
      </div>
      <div class="keys">
        {STATES.map(([state, field, words]) => (
          <a key={state} href={link(["nodes"], { state })}>
            <span class={`swatch s-${state}`} /> <b>{count(props.overview[field])}</b> {words}
          </a>
        ))}
      </div>
    </>
  );
}

function Week(props: { hours: ClusterHour[] }) {
  const period = lastHours(WEEK);
  const lines = useMemo(
    () => [
      {
        name: "allocated",
        points: props.hours.map((hour) => [hour.allocation_rate, hourAt(hour.stat_hour)] as const),
      },
      {
        name: "utilized",
        points: props.hours.flatMap((hour) =>
          hour.avg_utilization == null
            ? []
            : [[hour.avg_utilization, hourAt(hour.stat_hour)] as const],
        ),
      },
    ],
    [props.hours],
  );
  if (!props.hours.length)
    return (
      <Empty icon="clock" title="No complete hour yet">
        The first row appears two minutes after the end of the hour.
      </Empty>
    );
  return (
    <Lines
      lines={lines}
      label="Allocation and utilization of the last seven days"
      height={230}
      from={Date.parse(period.start_time) / 1000}
      to={Date.parse(period.end_time) / 1000}
      step={3600}
      min={0}
      max={100}
      format={(value, digits = 0) => `${value.toFixed(digits)}%`}
    />
  );
}

function Faults(props: { page: NodePage }) {
  if (!props.page.total)
    return (
      <Empty icon="inbox" title="No faults">
        Every GPU node is healthy.
      </Empty>
    );
  return (
    <ul class="list">
      {props.page.data.map((node) => (
        <li key={node.name}>
          <span class="dot bad" />
          <span class="grow">
            <a class="line" href={link(["nodes", node.name])}>
              {node.name}
            </a>
            <span class="muted small" title={node.fault}>
              {node.fault}
            </span>
          </span>
        </li>
      ))}
      {props.page.total > props.page.data.length && (
        <li class="muted small">and {count(props.page.total - props.page.data.length)} more</li>
      )}
    </ul>
  );
}

function Consumers(props: { cluster: string | undefined }) {
  const consumers = useResource<ConsumerPage>(
    "api/clusters/consumers",
    { cluster: props.cluster, pageSize: 7 },
    { every: 20_000, on: ["workload"] },
  );
  return (
    <Card
      title="Top consumers"
      flush
      aside={
        <a class="small muted" href={link(["workloads"], { status: "Running" })}>
          All workloads
        </a>
      }
    >
      <Loaded of={consumers}>
        {(page) =>
          page.data.length ? (
            <ul class="list">
              {page.data.map((consumer) => (
                <li key={consumer.uid}>
                  <span class="grow">
                    <a class="line" href={link(["workloads", consumer.uid])}>
                      {consumer.name}
                    </a>
                    <span class="line muted small">
                      {consumer.namespace} · {consumer.kind}
                    </span>
                  </span>
                  <span class="num small soft">{count(consumer.stat.gpuRequest)} GPU</span>
                  <Meter rate={consumer.stat.gpuUtilization} />
                </li>
              ))}
            </ul>
          ) : (
            <Empty title="No GPU is allocated" />
          )
        }
      </Loaded>
    </Card>
  );
}

/** Workloads with the most idle GPU hours, with their cost if prices are configured. */
function WasteList(props: { cluster: string | undefined }) {
  const days = lastDays(7);
  const waste = useResource<WastePage>(
    "api/v1/gpu-aggregation/waste",
    { cluster: props.cluster, ...spanOf(days), page_size: 7 },
    { every: 300_000 },
  );
  return (
    <Card
      title="Waste"
      note="idle while allocated, last 7 days"
      flush
      aside={
        <a class="small muted" href={link(["usage"])}>
          Usage
        </a>
      }
    >
      <Loaded of={waste} missing="This server has no hourly statistics">
        {(page) =>
          page.data.length ? (
            <ul class="list">
              {page.data.map((row) => (
                <li
                  key={`${row.namespace} ${row.workload_type} ${row.workload_name} ${row.owner_uid}`}
                >
                  <span class="grow">
                    <a class="line" href={link(["workloads", row.owner_uid])}>
                      {row.workload_name}
                    </a>
                    <span class="line muted small">
                      {row.namespace} · {row.workload_type}
                    </span>
                  </span>
                  <span class="num small soft">{count(row.idle_gpu_hours)} GPU hours</span>
                  <span class="num cost">
                    {row.idle_cost > 0
                      ? money(row.idle_cost, row.currency)
                      : percent(row.idle_share / 100)}
                  </span>
                </li>
              ))}
              <li class="muted small list-foot">
                {page.data[0]?.idle_cost
                  ? "idle GPU hours and their cost"
                  : "idle GPU hours and their share of the allocated hours"}
              </li>
            </ul>
          ) : (
            <Empty title="No idle allocations" />
          )
        }
      </Loaded>
    </Card>
  );
}

const TOPS = [
  ["power", "Power"],
  ["temperature", "Temperature"],
  ["utilization", "Utilization"],
] as const;

function Hottest(props: { cluster: string | undefined; by: string }) {
  const tops = useResource<Heatmaps>(
    "api/clusters/gpuHeatmap",
    { cluster: props.cluster, topK: 7 },
    { every: 20_000 },
  );
  const by = (TOPS.find(([name]) => name === props.by)?.[0] ?? "power") as (typeof TOPS)[number][0];
  return (
    <Card
      title="Top GPUs"
      flush
      aside={
        <Choice
          label="Top by"
          value={by}
          options={TOPS}
          onChange={(top) => setQuery({ top: top === "power" ? undefined : top })}
        />
      }
    >
      <Loaded of={tops}>
        {(heatmaps) =>
          heatmaps[by].data.length ? (
            <ul class="list">
              {heatmaps[by].data.map((gpu) => (
                <li key={`${gpu.nodeName}/${gpu.deviceId}`}>
                  <span class="grow">
                    <a
                      class="line"
                      href={link(["nodes", gpu.nodeName], { gpu: String(gpu.deviceId) })}
                    >
                      {gpu.nodeName} <span class="muted">GPU {gpu.deviceId}</span>
                    </a>
                    <span class="line muted small">{shortModel(gpu.gpuModel)}</span>
                  </span>
                  <span class="num">
                    {count(gpu.value)} {heatmaps[by].unit}
                  </span>
                </li>
              ))}
            </ul>
          ) : (
            <Empty title="No readings" />
          )
        }
      </Loaded>
    </Card>
  );
}

const CHANGE_TONES: Record<string, Tone> = {
  faulty: "bad",
  Unhealthy: "bad",
  Failed: "bad",
  healthy: "good",
  Healthy: "good",
  Running: "good",
  cordoned: "warn",
  Pending: "warn",
};

function Feed() {
  const { recent } = useLive();
  if (!recent.length)
    return (
      <Empty icon="clock" title="No recent changes">
        Changes to nodes, GPUs and workloads appear here as they happen.
      </Empty>
    );
  return (
    <ol class="list feed">
      {recent.slice(0, 7).map((change) => (
        <li key={`${change.at} ${change.subject} ${change.name} ${change.now}`}>
          <span class={`dot ${CHANGE_TONES[change.now] ?? "info"}`} />
          <span class="grow">
            <a class="line" href={targetOf(change)}>
              {change.title}
            </a>
            <span class="line muted small">
              {change.was ? `${change.was} → ${change.now}` : change.now}
              {change.reason && ` · ${change.reason}`}
            </span>
          </span>
          <span class="muted small">
            <Ago at={change.at * 1000} />
          </span>
        </li>
      ))}
    </ol>
  );
}

function targetOf(change: Change): string {
  if (change.subject === "workload") return link(["workloads", change.name]);
  if (change.subject === "claim") return link(["scheduling"], { claim: change.name });
  const [node = "", gpu] = change.name.split("/");
  return link(["nodes", node], { gpu });
}
