// GpuQueues and their departments: what a department has in all, and the part of all use that is due to each by its weight. Pure.

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

interface Counted extends Weighted {
  guaranteed: number;
  used: number;
  pending: number;
  share: number;
  borrowed: number;
}

/** Return the queues, each department before its queues, and departments with what they and their queues have in all. */
export function withDepartments<Q extends Counted>(queues: readonly Q[]): Q[] {
  const known = new Set(queues.map((queue) => queue.name));
  const isChild = (queue: Q) => known.has(queue.parent) && queue.parent !== queue.name;
  return queues
    .filter((queue) => !isChild(queue))
    .flatMap((queue) => {
      const children = queues.filter((other) => isChild(other) && other.parent === queue.name);
      if (!children.length) return [queue];
      const sum = (field: "guaranteed" | "used" | "pending" | "share") =>
        children.reduce((total, child) => total + child[field], 0);
      const guaranteed = Math.max(queue.guaranteed, sum("guaranteed"));
      const used = queue.used + sum("used");
      const whole = {
        guaranteed,
        used,
        borrowed: Math.max(0, used - guaranteed),
        pending: queue.pending + sum("pending"),
        share: queue.share + sum("share"),
      };
      return [{ ...queue, ...whole }, ...children];
    });
}
