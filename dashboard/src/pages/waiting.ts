// What waits for GPUs: the pending workloads, with the estimates of the queue for those whose pods name a claim.
import type { QueuePage, StartEstimate, WorkloadRow } from "../api/types";

type Unit = QueuePage["data"][number];

export interface Waiting {
  workload: WorkloadRow;
  estimate: StartEstimate | undefined;
  /** When it is expected to start, by the queue or by its own scheduler, in milliseconds; null if not known. */
  expected: number | null;
  /** Whether its pods name a claim, so that there will be an estimate. */
  claimed: boolean;
}

/** Join workloads and estimates: those of `me` first, then by position, then by age. */
export function waitingOf(
  workloads: readonly WorkloadRow[],
  units: readonly Unit[],
  me: string,
): Waiting[] {
  const estimates = new Map(
    units.flatMap((unit) =>
      unit.claims.map((claim) => [`${unit.namespace}/${claim}`, unit.estimate] as const),
    ),
  );
  const rank = ({ workload, estimate }: Waiting) => [
    isUser(me, workload.user ?? "") ? 0 : 1,
    estimate?.position ?? Infinity,
    workload.startAt,
  ];
  return workloads
    .map((workload) => {
      const estimate = lastOf(workload, estimates);
      const claimed = (workload.claims ?? []).length > 0;
      return { workload, estimate, claimed, expected: expectedOf(workload, estimate) };
    })
    .sort((a, b) => {
      const [left, right] = [rank(a), rank(b)];
      const place = left.findIndex((value, at) => value !== right[at]);
      return place < 0 ? 0 : (left[place] ?? 0) < (right[place] ?? 0) ? -1 : 1;
    });
}

/** Return the estimate of the last of its claims: only then it has all its GPUs. */
function lastOf(
  workload: WorkloadRow,
  estimates: ReadonlyMap<string, StartEstimate>,
): StartEstimate | undefined {
  return (workload.claims ?? [])
    .map((claim) => estimates.get(`${workload.namespace}/${claim}`))
    .reduce(
      (last, each) => ((each?.position ?? 0) > (last?.position ?? 0) ? each : last),
      undefined,
    );
}

/** Return when a workload is expected to start, in milliseconds; null if that is not known. */
export function expectedOf(
  workload: { expectedStart?: number },
  estimate?: StartEstimate,
): number | null {
  if (estimate) return estimate.expectedStart ? Date.parse(estimate.expectedStart) : null;
  return workload.expectedStart ? workload.expectedStart * 1000 : null;
}

/** Return whether two spellings name one user, as the server does: alice, or alice@example.com. */
export function isUser(one: string, other: string): boolean {
  if (!one || !other) return false;
  const [left, right] = [one.toLowerCase(), other.toLowerCase()];
  if (left.includes("@") && right.includes("@")) return left === right;
  return left.split("@")[0] === right.split("@")[0];
}

/** Return the workloads by namespace and claim. */
export function workloadsByClaim(workloads: readonly WorkloadRow[]): Map<string, WorkloadRow> {
  return new Map(
    workloads.flatMap((workload) =>
      (workload.claims ?? []).map((claim) => [`${workload.namespace}/${claim}`, workload]),
    ),
  );
}

/** Return the workloads without claims: Slurm, Kueue or another scheduler has them in its queue. */
export function waitingElsewhere(workloads: readonly WorkloadRow[]): WorkloadRow[] {
  return workloads.filter((workload) => !workload.claims?.length);
}
