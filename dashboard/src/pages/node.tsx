// Node page: GPUs by island, holders, processes, history.
import type { Graph, NodeDetail, NodeGpu, Occupancy } from "../api/types";
import { css, viridis } from "../charts/colours";
import { Gantt } from "../charts/gantt";
import { plural, rich, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { rangeName, useRange, zoomTo } from "../state/range";
import { link } from "../state/route";
import { count, decimal, percent, list, shortModel } from "../ui/format";
import { Icon } from "../ui/icons";
import { Ago, Badge, Card, Empty, KeyValues, PageHead, Loaded } from "../ui/components";
import { RangeChoice } from "../ui/range";
import { Table } from "../ui/table";
import { Graphs } from "./graphs";
import { STATE_TONES, STATE_WORDS, allocatedText } from "./nodes";

export function NodePage(props: { name: string; query: Record<string, string> }) {
  const { cluster } = props.query;
  const node = useResource<NodeDetail>(
    `api/nodes/${encodeURIComponent(props.name)}`,
    { cluster },
    { every: 10_000, on: ["node", "gpu"] },
  );
  return (
    <>
      <a class="crumb" href={link(["nodes"])}>
        <Icon name="left" /> {t("Nodes")}
      </a>
      <Loaded of={node} missing={t("No node {name} in this cluster", props)} lines={8}>
        {(data) => <Detail node={data} query={props.query} />}
      </Loaded>
    </>
  );
}

function Detail(props: { node: NodeDetail; query: Record<string, string> }) {
  const { node } = props;
  const chosen = props.query["gpu"] === undefined ? null : Number(props.query["gpu"]);
  return (
    <>
      <PageHead
        title={
          <span class="title-row">
            {node.name}{" "}
            <Badge
              word={STATE_WORDS[node.state] ?? node.state}
              tone={STATE_TONES[node.state] ?? "idle"}
            />
            {node.cordoned && <Badge word="cordoned" />}
          </span>
        }
        sub={[
          allocationText(node),
          shortModel(node.gpuModel),
          node.utilization == null
            ? ""
            : t("{share} utilized", { share: percent(node.utilization) }),
          node.source,
        ]
          .filter(Boolean)
          .join(" · ")}
      />
      {node.fault && (
        <p class="banner bad" role="alert">
          <Icon name="alert" /> <strong>{t("Faulty.")}</strong> <span>{node.fault}</span>
        </p>
      )}
      <div class="grid">
        <Card title={t("GPUs")} note={t("grouped by island: GPUs with fast links to each other")}>
          <Islands gpus={node.gpus} chosen={chosen} unnamed={unknownHolderText(node)} />
        </Card>
      </div>
      <div class="grid">
        <History name={node.name} query={props.query} />
      </div>
      <div class="grid two">
        <Card title={t("Processes")} flush>
          <Processes node={node} />
        </Card>
        <Card title={t("Labels")}>
          <KeyValues of={node.labels} />
        </Card>
      </div>
    </>
  );
}

function allocationText(node: NodeDetail): string {
  return node.gpuAllocated == null
    ? plural(node.gpuTotal, "{n} GPU, allocation unknown", "{n} GPUs, allocation unknown")
    : allocatedText(node.gpuAllocated, node.gpuTotal);
}

const FREE = t("free");

/** Return the text for a GPU without a known holder: a pod may hold GPUs without reporting which. */
function unknownHolderText(node: NodeDetail): string {
  if (!node.ready) return t("not available");
  const named = node.gpus.filter((gpu) => gpu.holders?.length).length;
  if (node.gpuAllocated == null) return t("not known whether allocated");
  if (node.gpuAllocated <= named) return FREE;
  return node.gpuAllocated >= node.gpuTotal
    ? t("allocated, holder unknown")
    : t("{n} of these are allocated, not known which", { n: node.gpuAllocated - named });
}

function Islands(props: { gpus: NodeGpu[]; chosen: number | null; unnamed: string }) {
  if (!props.gpus.length)
    return (
      <Empty title={t("No GPU details")}>
        {t("Install the agent on this node to see its GPUs one by one.")}
      </Empty>
    );
  const islands = new Map<string, NodeGpu[]>();
  for (const gpu of props.gpus) islands.set(gpu.island, [...(islands.get(gpu.island) ?? []), gpu]);
  return (
    <div class="islands">
      {[...islands].map(([island, gpus]) => (
        <section class="island" key={island}>
          <div class="island-head">
            <h3>{island || t("No island")}</h3>
            {(gpus[0]?.bandwidthGBps ?? 0) > 0 && (
              <span class="muted small num">{count(gpus[0]?.bandwidthGBps)} GB/s</span>
            )}
          </div>
          <div class="tiles">
            {gpus.map((gpu) => (
              <Gpu
                key={gpu.index}
                gpu={gpu}
                chosen={gpu.index === props.chosen}
                unnamed={props.unnamed}
              />
            ))}
          </div>
        </section>
      ))}
    </div>
  );
}

function Gpu(props: { gpu: NodeGpu; chosen: boolean; unnamed: string }) {
  const { gpu } = props;
  const load = gpu.utilization ?? null;
  const sick = gpu.health !== "Healthy" && gpu.health !== "";
  return (
    <div class={`gpu ${sick ? "bad" : ""} ${props.chosen ? "chosen" : ""}`} title={gpu.uuid}>
      <div class="gpu-top">
        <b>GPU {gpu.index}</b>
        <span class="spacer" />
        {sick && <Badge word={gpu.health ?? ""} />}
        {!sick && gpu.draining && <Badge word="draining" />}
        {!sick && gpu.cordoned && <Badge word="cordoned" />}
        {!sick && <span class="gpu-load num">{percent(load)}</span>}
      </div>
      <div class="bar">
        <span style={{ width: `${(load ?? 0) * 100}%`, background: css(viridis(load ?? 0)) }} />
      </div>
      <div class="gpu-facts num">
        <span>{gpu.temperature == null ? "– ℃" : `${decimal(gpu.temperature, 0)} ℃`}</span>
        <span>{gpu.power == null ? "– W" : `${decimal(gpu.power, 0)} W`}</span>
        <span>
          {gpu.memoryUsed == null
            ? "– GiB"
            : `${decimal(gpu.memoryUsed, 0)} / ${decimal(gpu.memoryTotal, 0)} GiB`}
        </span>
      </div>
      {sick && (
        <p class="small failed-words">
          {gpu.healthReason}
          {gpu.healthSince && (
            <span class="muted">
              {" "}
              {rich("since {time}", { time: <Ago at={Date.parse(gpu.healthSince)} /> })}
            </span>
          )}
        </p>
      )}
      {(gpu.migProfiles ?? []).length > 0 && (
        <span class="muted small">{migText(gpu.migProfiles ?? [])}</span>
      )}
      {(gpu.holders ?? []).map((holder) => (
        <Holder key={holder.podUid} holder={holder} />
      ))}
      {!gpu.holders?.length && !(sick && props.unnamed === FREE) && (
        <span class="gpu-holder muted">{props.unnamed}</span>
      )}
    </div>
  );
}

/** Return how a GPU is partitioned: "MIG 2 × 3g.40gb". */
export function migText(profiles: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const profile of profiles) counts.set(profile, (counts.get(profile) ?? 0) + 1);
  return `MIG ${list([...counts].map(([profile, number]) => `${number} × ${profile}`))}`;
}

/** A pod that holds a GPU. One of a namespace that the caller may not see has no name. */
function Holder(props: { holder: NonNullable<NodeGpu["holders"]>[number] }) {
  const { holder } = props;
  const share = holder.share < 1 && <span class="muted"> {percent(holder.share)}</span>;
  if (!holder.podUid)
    return (
      <span class="gpu-holder muted">
        {t("another namespace")}
        {share}
      </span>
    );
  return (
    <a
      class="gpu-holder"
      href={link(["workloads", holder.workloadUid])}
      title={`${holder.podNamespace}/${holder.podName}`}
    >
      {holder.podName}
      {share}
    </a>
  );
}

function History(props: { name: string; query: Record<string, string> }) {
  const range = useRange(props.query);
  const graphs = useResource<Record<string, Graph>>(
    `api/nodes/${encodeURIComponent(props.name)}/metrics`,
    { cluster: props.query["cluster"], ...range },
    { every: 60_000, same: `history ${rangeName(props.query)}` },
  );
  const occupancy = useResource<Occupancy>(
    `api/nodes/${encodeURIComponent(props.name)}/occupancy`,
    { cluster: props.query["cluster"], start: range.start, end: range.end },
    { every: 60_000, same: `occupancy ${rangeName(props.query)}` },
  );
  return (
    <Card title={t("History")} aside={<RangeChoice query={props.query} range={range} />}>
      <Loaded of={occupancy} missing={t("This server has no history of allocations")} lines={4}>
        {(data) => <Gantt occupancy={data} start={range.start} end={range.end} onZoom={zoomTo} />}
      </Loaded>
      <Loaded of={graphs} missing={t("This server has no node history")} lines={6}>
        {(data) => <Graphs graphs={data} range={range} />}
      </Loaded>
    </Card>
  );
}

function Processes(props: { node: NodeDetail }) {
  if (!props.node.processes.length)
    return (
      <Empty title={t("No processes")}>
        {t("No process uses these GPUs, or no exporter reports processes.")}
      </Empty>
    );
  return (
    <Table label={t("Processes")}>
      <thead>
        <tr>
          <th>GPU</th>
          <th>{t("Process")}</th>
          <th>{t("User")}</th>
          <th class="right">PID</th>
          <th class="right">{t("GPU memory")}</th>
        </tr>
      </thead>
      <tbody>
        {props.node.processes.map((process) => (
          <tr key={`${process.gpuIndex} ${process.pid}`}>
            <td class="number">{process.gpuIndex}</td>
            <td class="name">{process.processName}</td>
            <td class="soft">{process.user}</td>
            <td class="right">{process.pid}</td>
            <td class="right">
              {process.gpuMemory == null ? "–" : `${decimal(process.gpuMemory / 1024)} GiB`}
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}
