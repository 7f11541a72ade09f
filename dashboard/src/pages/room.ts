// What room there is on the map: which nodes could take some GPUs together right now. It looks at
// free, healthy, schedulable GPUs and their islands; taints, CPU and memory it does not know.
import type { GpuMap } from "../api/types";

export type Together = "any" | "contiguous" | "island";

export interface NodeRoom {
  node: string;
  model: string;
  free: number;
  /** Most free GPUs with neighbouring indexes. */
  run: number;
  /** Most free GPUs on one island. */
  island: number;
}

export function roomOf(map: GpuMap): NodeRoom[] {
  const rooms: NodeRoom[] = [];
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
    rooms.push({
      node: map.nodes[node] ?? "",
      model,
      free,
      run: longest,
      island: Math.max(0, ...islands.values()),
    });
  }
  return rooms;
}

/** The nodes that could take `count` GPUs, the fullest first, so that whole nodes stay free. */
export function fitting(
  rooms: NodeRoom[],
  count: number,
  together: Together,
  model: string,
): NodeRoom[] {
  const size = (room: NodeRoom) =>
    together === "any" ? room.free : together === "contiguous" ? room.run : room.island;
  return rooms
    .filter((room) => (!model || room.model === model) && size(room) >= count)
    .sort((a, b) => a.free - b.free || a.node.localeCompare(b.node));
}

/** How many nodes have 1, 2, … free GPUs. */
export function byFree(rooms: NodeRoom[]): [number, number][] {
  const found = new Map<number, number>();
  for (const room of rooms) if (room.free) found.set(room.free, (found.get(room.free) ?? 0) + 1);
  return [...found].sort(([a], [b]) => a - b);
}
