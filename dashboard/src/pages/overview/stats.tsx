// The numbers at the top of the overview.
import type { ClusterHour, ClusterOverview } from "../../api/types";
import { Spark } from "../../charts/spark";
import type { Resource } from "../../state/resource";
import { link } from "../../state/route";
import { NONE, count, percent } from "../../ui/format";
import { Card, Loaded, StaleNote } from "../../ui/components";

const IDLE_BELOW = 5;

function allocationText(overview: ClusterOverview): string {
  return overview.schedulableAllocatedGpus == null
    ? `allocation of ${count(overview.schedulableGpus)} GPUs unknown`
    : `${count(overview.schedulableAllocatedGpus)} of ${count(overview.schedulableGpus)} schedulable GPUs`;
}

export function Stats(props: { overview: Resource<ClusterOverview>; week: ClusterHour[] }) {
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
