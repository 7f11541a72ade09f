// What is known about the GPU under the pointer or the keyboard cursor: holder, state and all readings.
import { useEffect, useState } from "preact/hooks";
import type { GpuMap, NodeDetail, NodeGpu } from "../api/types";
import { useResource } from "../state/resource";
import { hrefOf, link } from "../state/route";
import { decimal, percent, shortModel, span } from "../ui/format";

export const MARKS: Record<string, string> = {
  f: "free",
  h: "allocated",
  p: "allocated or free, not known which",
  x: "unhealthy",
  c: "cordoned",
  u: "health unknown",
  d: "draining: a deleted pod still has processes on it",
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
  const value = map.values[gpu];
  const reading = value == null ? "no reading" : `${value} ${map.unit}`;
  const holder = map.holders[map.holderOf[gpu] ?? -1];
  const held = holder?.name ? `, held by ${holder.namespace}/${holder.name}` : "";
  return `${map.nodes[node]}, GPU ${map.indexes[gpu]}: ${reading}, ${MARKS[map.marks[gpu] ?? ""] ?? ""}${held}`;
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
          {href ? <a href={href}>{holder.name}</a> : "a workload of another namespace"}
          {href && (
            <span class="muted small">
              {" "}
              {[holder.kind, holder.team, holder.user].filter(Boolean).join(" · ")}
            </span>
          )}
        </p>
      )}
      <dl class="tip-facts num">
        {(read ? facts(read) : [[map.quantity, valueText(map, gpu)] as const]).map(
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
  if (value == null) return "no reading";
  return map.unit === "s" ? span(value) : `${value} ${map.unit}`;
}

function facts(gpu: NodeGpu): (readonly [string, string])[] {
  const memory =
    gpu.memoryUsed == null
      ? "–"
      : `${decimal(gpu.memoryUsed, 0)} / ${decimal(gpu.memoryTotal, 0)} GiB`;
  return [
    ["Utilization", percent(gpu.utilization)],
    ["Memory", memory],
    ["Temperature", gpu.temperature == null ? "–" : `${decimal(gpu.temperature, 0)} ℃`],
    ["Power", gpu.power == null ? "–" : `${decimal(gpu.power, 0)} W`],
    ...(gpu.island ? [["Island", gpu.island] as const] : []),
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
