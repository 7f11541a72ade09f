// The part of all use that is due to each GpuQueue by its weight.

interface Weighted {
  name: string;
  parent: string;
  weight: number;
}

/** Return the due share of each queue, 0–1: its weight among the children of its parent, times the parent's share. */
export function dueShares(queues: readonly Weighted[]): Map<string, number> {
  const known = new Map(queues.map((queue) => [queue.name, queue]));
  const parentOf = (queue: Weighted) => (known.has(queue.parent) ? queue.parent : "");
  const share = (queue: Weighted, depth = 0): number => {
    const parent = parentOf(queue);
    const all = queues.filter((other) => parentOf(other) === parent);
    const part = queue.weight / (all.reduce((sum, other) => sum + other.weight, 0) || 1);
    const above = known.get(parent);
    return above && depth < queues.length ? part * share(above, depth + 1) : part;
  };
  return new Map(queues.map((queue) => [queue.name, share(queue)]));
}
