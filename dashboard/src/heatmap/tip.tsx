// What is known about the GPU under the pointer or the keyboard cursor: holder, state and all readings.
import { useEffect, useState } from "preact/hooks";
import type { GpuMap, NodeDetail, NodeGpu } from "../api/types";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { hrefOf, link } from "../state/route";
import { quantityText } from "../i18n/states";
import { decimal, percent, shortModel, span } from "../ui/format";

export const MARKS: Record<string, string> = {
  f: t("free"),
  h: t("allocated"),
  p: t("allocated or free, not known which"),
  x: t("unhealthy"),
  c: t("cordoned"),
  u: t("health unknown"),
  d: t("draining: a deleted pod still has processes on it"),
};
/** Milliseconds on one node before its readings are requested. */
const REST = 180;

export function clusterOf(map: GpuMap, node: number): string | undefined {
  const group = map.groups["cluster"];
  return group?.values[group.of[node] ?? 0];
}

/** Return the page of a GPU; in its own cluster if the map shows several. */
export function hrefOfGpu(map: GpuMap, node: number, gpu: number): string {
  const query = { gpu: String(map.indexes[gpu]) };
  const several = (map.groups["cluster"]?.values.length ?? 0) > 1;
  const path = ["nodes", map.nodes[node] ?? ""];
  return several ? hrefOf(path, { ...query, cluster: clusterOf(map, node) }) : link(path, query);
}

export function hrefOfHolder(map: GpuMap, node: number, gpu: number): string | null {
  const holder = map.holders[map.holderOf[gpu] ?? -1];
  if (!holder?.uid) return null;
  const several = (map.groups["cluster"]?.values.length ?? 0) > 1;
  const path = ["workloads", holder.uid];
  return several ? hrefOf(path, { cluster: clusterOf(map, node) }) : link(path);
}

/** Describe a GPU in one sentence, for screen readers. */
export function sentence(map: GpuMap, node: number, gpu: number): string {
  const holder = map.holders[map.holderOf[gpu] ?? -1];
  const values = {
    node: map.nodes[node] ?? "",
    gpu: map.indexes[gpu] ?? 0,
    reading: valueText(map, gpu),
    state: MARKS[map.marks[gpu] ?? ""] ?? "",
  };
  return holder?.name
    ? t("{node}, GPU {gpu}: {reading}, {state}, held by {holder}", {
        ...values,
        holder: `${holder.namespace}/${holder.name}`,
      })
    : t("{node}, GPU {gpu}: {reading}, {state}", values);
}

export function Tip(props: {
  map: GpuMap;
  node: number;
  gpu: number;
  /** Position on the map; below the map without one. */
  at: { x: number; y: number } | null;
  onEnter: () => void;
  onLeave: () => void;
}) {
  const { map, node, gpu } = props;
  const name = map.nodes[node] ?? "";
  const details = useNode(name, clusterOf(map, node));
  const read = details?.gpus.find((each) => each.index === map.indexes[gpu]);
  const holder = map.holders[map.holderOf[gpu] ?? -1];
  const href = hrefOfHolder(map, node, gpu);
  return (
    <div
      class={props.at ? "tip" : "tip docked"}
      style={props.at ? { transform: `translate(${props.at.x}px, ${props.at.y}px)` } : {}}
      onPointerEnter={props.onEnter}
      onPointerLeave={props.onLeave}
    >
      <p class="tip-title">
        <a href={hrefOfGpu(map, node, gpu)}>
          {name} <span class="muted">GPU {map.indexes[gpu]}</span>
        </a>
      </p>
      <p class="muted small">
        {MARKS[map.marks[gpu] ?? ""]} · {shortModel(map.models[map.modelOf[node] ?? 0] ?? "")}
      </p>
      {holder && (
        <p class="tip-holder">
          {href ? <a href={href}>{holder.name}</a> : t("a workload of another namespace")}
          {href && (
            <span class="muted small">
              {" "}
              {[holder.kind, holder.team, holder.user].filter(Boolean).join(" · ")}
            </span>
          )}
        </p>
      )}
      <dl class="tip-facts num">
        {(read ? facts(read) : [[quantityText(map.quantity), valueText(map, gpu)] as const]).map(
          ([words, value]) => (
            <div key={words}>
              <dt>{words}</dt>
              <dd>{value}</dd>
            </div>
          ),
        )}
      </dl>
      {read?.healthReason && <p class="small failed-words">{read.healthReason}</p>}
    </div>
  );
}

function valueText(map: GpuMap, gpu: number): string {
  const value = map.values[gpu];
  if (value == null) return t("no reading");
  return map.unit === "s" ? span(value) : `${value} ${map.unit}`;
}

function facts(gpu: NodeGpu): (readonly [string, string])[] {
  const memory =
    gpu.memoryUsed == null
      ? "–"
      : `${decimal(gpu.memoryUsed, 0)} / ${decimal(gpu.memoryTotal, 0)} GiB`;
  return [
    [t("Utilization"), percent(gpu.utilization)],
    [t("Memory"), memory],
    [t("Temperature"), gpu.temperature == null ? "–" : `${decimal(gpu.temperature, 0)} ℃`],
    [t("Power"), gpu.power == null ? "–" : `${decimal(gpu.power, 0)} W`],
    ...(gpu.island ? [[t("Island"), gpu.island] as const] : []),
  ];
}

/** Fetch the readings of a node once the pointer rests on it. */
function useNode(name: string, cluster: string | undefined): NodeDetail | undefined {
  const [rested, setRested] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setRested(name), REST);
    return () => clearTimeout(timer);
  }, [name]);
  const path = rested === name && name ? `api/nodes/${encodeURIComponent(name)}` : null;
  return useResource<NodeDetail>(path, { cluster }).data;
}
