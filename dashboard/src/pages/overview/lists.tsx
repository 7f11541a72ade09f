// The lists of the overview: faults, top consumers, waste, hottest GPUs, recent changes.
import { useLive } from "../../api/events";
import type { Change, ConsumerPage, Heatmaps, NodePage, WastePage } from "../../api/types";
import { stateText } from "../../i18n/states";
import { plural, t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { link, setQuery } from "../../state/route";
import { count, money, percent, shortModel } from "../../ui/format";
import { Ago, Card, Choice, Empty, Loaded, Meter, type Tone } from "../../ui/components";
import { lastDays, spanOf } from "../period";

export function Faults(props: { page: NodePage }) {
  if (!props.page.total)
    return (
      <Empty icon="inbox" title={t("No faults")}>
        {t("Every GPU node is healthy.")}
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
        <li class="muted small">
          {t("and {more} more", { more: props.page.total - props.page.data.length })}
        </li>
      )}
    </ul>
  );
}

export function Consumers(props: { cluster: string | undefined }) {
  const consumers = useResource<ConsumerPage>(
    "api/clusters/consumers",
    { cluster: props.cluster, pageSize: 7 },
    { every: 20_000, on: ["workload"] },
  );
  return (
    <Card
      title={t("Top consumers")}
      flush
      aside={
        <a class="small muted" href={link(["workloads"], { status: "Running" })}>
          {t("All workloads")}
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
                  <span class="num small soft">
                    {plural(consumer.stat.gpuRequest, "{n} GPU", "{n} GPUs")}
                  </span>
                  <Meter rate={consumer.stat.gpuUtilization} />
                </li>
              ))}
            </ul>
          ) : (
            <Empty title={t("No GPU is allocated")} />
          )
        }
      </Loaded>
    </Card>
  );
}

/** Workloads with the most idle GPU hours, with their cost if prices are configured. */
export function WasteList(props: { cluster: string | undefined }) {
  const days = lastDays(7);
  const waste = useResource<WastePage>(
    "api/v1/gpu-aggregation/waste",
    { cluster: props.cluster, ...spanOf(days), page_size: 7 },
    { every: 300_000 },
  );
  return (
    <Card
      title={t("Waste")}
      note={t("idle while allocated, last 7 days")}
      flush
      aside={
        <a class="small muted" href={link(["usage"])}>
          {t("Usage")}
        </a>
      }
    >
      <Loaded of={waste} missing={t("This server has no hourly statistics")}>
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
                  <span class="num small soft">
                    {t("{hours} GPU hours", { hours: count(row.idle_gpu_hours) })}
                  </span>
                  <span class="num cost">
                    {row.idle_cost > 0
                      ? money(row.idle_cost, row.currency)
                      : percent(row.idle_share / 100)}
                  </span>
                </li>
              ))}
              <li class="muted small list-foot">
                {page.data[0]?.idle_cost
                  ? t("idle GPU hours and their cost")
                  : t("idle GPU hours and their share of the allocated hours")}
              </li>
            </ul>
          ) : (
            <Empty title={t("No idle allocations")} />
          )
        }
      </Loaded>
    </Card>
  );
}

const TOPS = [
  ["power", t("Power")],
  ["temperature", t("Temperature")],
  ["utilization", t("Utilization")],
] as const;

export function Hottest(props: { cluster: string | undefined; by: string }) {
  const tops = useResource<Heatmaps>(
    "api/clusters/gpuHeatmap",
    { cluster: props.cluster, topK: 7 },
    { every: 20_000 },
  );
  const by = (TOPS.find(([name]) => name === props.by)?.[0] ?? "power") as (typeof TOPS)[number][0];
  return (
    <Card
      title={t("Top GPUs")}
      flush
      aside={
        <Choice
          label={t("Top by")}
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
            <Empty title={t("No readings")} />
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

export function Feed() {
  const { recent } = useLive();
  if (!recent.length)
    return (
      <Empty icon="clock" title={t("No recent changes")}>
        {t("Changes to nodes, GPUs and workloads appear here as they happen.")}
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
              {[change.was, change.now].filter(Boolean).map(stateText).join(" → ")}
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
