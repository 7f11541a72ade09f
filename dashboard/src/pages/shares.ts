// GpuQueues as a tree, and the part of all use that is due to each by its weight.

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

/** A queue below its parent, with all queues of its branch: a department has what its queues have. */
export interface Branch<Q> {
  queue: Q;
  depth: number;
  within: Q[];
}

/** Return each queue after its parent. */
export function inTree<Q extends Weighted>(queues: readonly Q[]): Branch<Q>[] {
  const names = new Set(queues.map((queue) => queue.name));
  const branch = (queue: Q, depth: number): Branch<Q>[] => {
    const below = queues
      .filter((each) => each.parent === queue.name && !isLoop(each, queues))
      .flatMap((each) => branch(each, depth + 1));
    return [{ queue, depth, within: [queue, ...below.map((each) => each.queue)] }, ...below];
  };
  const isRoot = (queue: Q) => !names.has(queue.parent) || isLoop(queue, queues);
  return queues.filter(isRoot).flatMap((queue) => branch(queue, 0));
}

/** Return whether a queue is its own ancestor, which the scheduler refuses. */
function isLoop(queue: Weighted, queues: readonly Weighted[]): boolean {
  let at: Weighted | undefined = queue;
  for (let step = 0; step < queues.length; step++) {
    const parent: string = at?.parent ?? "";
    at = queues.find((each) => each.name === parent);
    if (at === queue) return true;
  }
  return false;
}
