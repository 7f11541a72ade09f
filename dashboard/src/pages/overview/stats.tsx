// The numbers at the top of the overview.
import type { ClusterHour, ClusterOverview } from "../../api/types";
import { Spark } from "../../charts/spark";
import { plural, t } from "../../i18n/text";
import type { Resource } from "../../state/resource";
import { link } from "../../state/route";
import { NONE, count, percent } from "../../ui/format";
import { Card, Loaded, StaleNote } from "../../ui/components";

const IDLE_BELOW = 5;

function allocationText(overview: ClusterOverview): string {
  return overview.schedulableAllocatedGpus == null
    ? plural(
        overview.schedulableGpus,
        "allocation of {n} GPU unknown",
        "allocation of {n} GPUs unknown",
      )
    : plural(
        overview.schedulableGpus,
        "{allocated} of {n} schedulable GPU",
        "{allocated} of {n} schedulable GPUs",
        { allocated: overview.schedulableAllocatedGpus },
      );
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
          <span class="stat-label">{t("Allocated (schedulable GPUs)")}</span>
          <span class="stat-value">{data ? percent(data.allocationRate) : " "}</span>
          <Spark
            values={props.week.map((hour) => hour.allocation_rate)}
            label={t("Allocated share of all GPUs over 7 days")}
          />
          <span class="stat-sub num">{data ? allocationText(data) : " "}</span>
        </div>
        <div class="card stat">
          <span class="stat-label">{t("Utilization (allocated GPUs)")}</span>
          <span class="stat-value">{data ? percent(data.utilization) : " "}</span>
          <Spark
            values={props.week.flatMap((hour) => hour.avg_utilization ?? [])}
            label={t("Utilization over 7 days")}
          />
          <span class="stat-sub">
            {data && data.utilization == null ? t("no readings") : t("mean of the latest readings")}
          </span>
        </div>
        <div class="card stat">
          <span class="stat-label">{t("Idle while allocated")}</span>
          <span class="stat-value">
            {data?.measuredGpus ? count(data.idleGpus) : NONE}{" "}
            <small>{plural(data?.measuredGpus ? data.idleGpus : 0, "GPU", "GPUs")}</small>
          </span>
          <span class="stat-sub num">
            {data?.measuredGpus
              ? plural(
                  data.measuredGpus,
                  "{share} of {n} allocated GPU, below {limit}%",
                  "{share} of {n} allocated GPUs, below {limit}%",
                  { share: percent(data.idleGpus / data.measuredGpus), limit: IDLE_BELOW },
                )
              : t("no readings")}
          </span>
        </div>
        <div class="card stat">
          <span class="stat-label">{t("Nodes")}</span>
          <span class="stat-value">
            {data ? count(data.healthyNodes) : " "} <small>{t("healthy")}</small>
          </span>
          {data && <NodeSplit overview={data} />}
        </div>
      </div>
    </>
  );
}

const STATES = [
  ["busy", "busyNodes", t("full")],
  ["partial", "partiallyIdleNodes", t("partly free")],
  ["idle", "fullyIdleNodes", t("free")],
  ["faulty", "faultyNodes", t("faulty")],
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
