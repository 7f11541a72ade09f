// Order the nodes of the map by group, and find GPUs by the names of their node, holder, team or user.
import type { GpuMap } from "../api/types";
import { t } from "../i18n/text";
import { shortModel } from "../ui/format";

/** A group of nodes: its name, and the index of its first node. */
export interface Section {
  name: string;
  first: number;
}

export interface Arranged {
  map: GpuMap;
  sections: Section[];
}

const WORDS: Record<string, string> = {
  model: t("Model"),
  source: t("Source"),
  cluster: t("Cluster"),
  "topology.kubernetes.io/region": t("Region"),
  "topology.kubernetes.io/zone": t("Zone"),
  "topology.kubernetes.io/block": t("Block"),
  "topology.kubernetes.io/rack": t("Rack"),
  "nvidia.com/gpu.clique": t("NVLink domain"),
};

/** Return what the nodes of a map can be grouped by, with a name for each. */
export function groupings(map: GpuMap | undefined, clusters: number): Record<string, string> {
  const found = ["model", ...Object.keys(map?.groups ?? {})].filter(
    (key) => key !== "cluster" || clusters > 1,
  );
  return Object.fromEntries(found.map((key) => [key, WORDS[key] ?? key]));
}

/** Return the map with its nodes ordered by a group; unchanged without one. */
export function arrange(map: GpuMap, by: string): Arranged {
  const named = namesBy(map, by);
  if (!named) return { map, sections: [] };
  const order = map.nodes.map((_, node) => node);
  const place = new Map([...new Set(named)].sort(natural).map((name, at) => [name, at]));
  order.sort((a, b) => at(place, named[a]) - at(place, named[b]) || a - b);
  const sections: Section[] = [];
  order.forEach((node, first) => {
    const name = named[node] || t("not known");
    if (sections.at(-1)?.name !== name) sections.push({ name, first });
  });
  return { map: reordered(map, order), sections };
}

const natural = new Intl.Collator("en", { numeric: true }).compare;

function at(places: Map<string, number>, name: string | undefined): number {
  return name ? (places.get(name) ?? 0) : Infinity;
}

function namesBy(map: GpuMap, by: string): string[] | null {
  if (by === "model") return map.modelOf.map((model) => shortModel(map.models[model] ?? ""));
  const group = map.groups[by];
  return group ? group.of.map((value) => group.values[value] ?? "") : null;
}

function reordered(map: GpuMap, order: number[]): GpuMap {
  const first = [0];
  for (const count of map.counts) first.push((first.at(-1) ?? 0) + count);
  const gpus: number[] = [];
  for (const node of order)
    for (let gpu = first[node] ?? 0; gpu < (first[node + 1] ?? 0); gpu++) gpus.push(gpu);
  const byNode = <T>(values: readonly T[]) => order.map((node) => values[node] as T);
  const byGpu = <T>(values: readonly T[]) => gpus.map((gpu) => values[gpu] as T);
  const letters = (text: string) => gpus.map((gpu) => text[gpu]).join("");
  return {
    ...map,
    nodes: byNode(map.nodes),
    counts: byNode(map.counts),
    modelOf: byNode(map.modelOf),
    indexes: byGpu(map.indexes),
    values: byGpu(map.values),
    marks: letters(map.marks),
    islands: letters(map.islands),
    holderOf: map.holderOf.length ? byGpu(map.holderOf) : map.holderOf,
    groups: Object.fromEntries(
      Object.entries(map.groups).map(([key, group]) => [key, { ...group, of: byNode(group.of) }]),
    ),
  };
}

export interface Matches {
  /** 1 for each GPU that matches. */
  gpus: Uint8Array;
  count: number;
}

/** Return the GPUs whose node, workload, namespace, team or user contains `text`; null without a text. */
export function find(map: GpuMap, text: string): Matches | null {
  const words = text.trim().toLowerCase();
  if (!words) return null;
  const holders = map.holders.map((holder) =>
    [holder.name, holder.namespace, holder.team, holder.user, holder.uid].some((each) =>
      each.toLowerCase().includes(words),
    ),
  );
  const gpus = new Uint8Array(map.values.length);
  let count = 0;
  let gpu = 0;
  map.nodes.forEach((name, node) => {
    const here = name.toLowerCase().includes(words);
    for (let end = gpu + (map.counts[node] ?? 0); gpu < end; gpu++) {
      if (!here && !holders[map.holderOf[gpu] ?? -1]) continue;
      gpus[gpu] = 1;
      count++;
    }
  });
  return { gpus, count };
}
