// Free capacity by node, from the map: which nodes could take some GPUs together now. Considers free,
// healthy, schedulable GPUs and their islands; ignores taints, CPU and memory.
import type { GpuMap } from "../api/types";

export type Grouping = "any" | "contiguous" | "island";

export interface NodeCapacity {
  node: string;
  model: string;
  free: number;
  /** Longest run of free GPUs with adjacent indexes. */
  run: number;
  /** Largest number of free GPUs on one island. */
  island: number;
}

export function capacityOf(map: GpuMap): NodeCapacity[] {
  const nodes: NodeCapacity[] = [];
  let gpu = 0;
  for (let node = 0; node < map.nodes.length; node++) {
    const end = gpu + (map.counts[node] ?? 0);
    const islands = new Map<string, number>();
    let [free, run, longest, last] = [0, 0, 0, -2];
    for (; gpu < end; gpu++) {
      if (map.marks[gpu] !== "f") continue;
      const index = map.indexes[gpu] ?? 0;
      run = index === last + 1 ? run + 1 : 1;
      last = index;
      free++;
      longest = Math.max(longest, run);
      const island = map.islands[gpu] ?? "-";
      if (island !== "-") islands.set(island, (islands.get(island) ?? 0) + 1);
    }
    const model = map.models[map.modelOf[node] ?? 0] ?? "";
    nodes.push({
      node: map.nodes[node] ?? "",
      model,
      free,
      run: longest,
      island: Math.max(0, ...islands.values()),
    });
  }
  return nodes;
}

/** Return the nodes that could take `count` GPUs, the fullest first so that whole nodes stay free. */
export function fittingNodes(
  nodes: NodeCapacity[],
  count: number,
  together: Grouping,
  model: string,
): NodeCapacity[] {
  const size = (node: NodeCapacity) =>
    together === "any" ? node.free : together === "contiguous" ? node.run : node.island;
  return nodes
    .filter((node) => (!model || node.model === model) && size(node) >= count)
    .sort((a, b) => a.free - b.free || a.node.localeCompare(b.node));
}

/** Count the nodes by their number of free GPUs. */
export function byFree(nodes: NodeCapacity[]): [number, number][] {
  const found = new Map<number, number>();
  for (const node of nodes) if (node.free) found.set(node.free, (found.get(node.free) ?? 0) + 1);
  return [...found].sort(([a], [b]) => a - b);
}
