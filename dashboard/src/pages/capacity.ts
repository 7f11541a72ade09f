// Count nodes by the GPUs that are free on them, from the map.
import type { GpuMap } from "../api/types";

/** Return pairs of a number of free GPUs and the number of nodes that have so many; full nodes are left out. */
export function byFree(map: GpuMap): [number, number][] {
  const found = new Map<number, number>();
  let gpu = 0;
  for (const count of map.counts) {
    const free = [...map.marks.slice(gpu, gpu + count)].filter((mark) => mark === "f").length;
    if (free) found.set(free, (found.get(free) ?? 0) + 1);
    gpu += count;
  }
  return [...found].sort(([a], [b]) => a - b);
}
