// What waits for GPUs: the pending workloads, with the estimates of the queue for those whose pods name a claim.
import type { QueuePage, StartEstimate, WorkloadRow } from "../api/types";

export interface Waiting {
  workload: WorkloadRow;
  estimate: StartEstimate | undefined;
}

/** Join workloads and estimates: those of `me` first, then by position, then by age. */
export function waitingOf(
  workloads: readonly WorkloadRow[],
  units: QueuePage["data"],
  me: string,
): Waiting[] {
  const estimates = new Map(
    units.flatMap((unit) =>
      unit.claims.map((claim) => [`${unit.namespace}/${claim}`, unit.estimate] as const),
    ),
  );
  const rank = ({ workload, estimate }: Waiting) => [
    me && workload.user === me ? 0 : 1,
    estimate?.position ?? Infinity,
    workload.startAt,
  ];
  return workloads
    .map((workload) => ({ workload, estimate: firstOf(workload, estimates) }))
    .sort((a, b) => {
      const [left, right] = [rank(a), rank(b)];
      const place = left.findIndex((value, at) => value !== right[at]);
      return place < 0 ? 0 : (left[place] ?? 0) < (right[place] ?? 0) ? -1 : 1;
    });
}

function firstOf(
  workload: WorkloadRow,
  estimates: ReadonlyMap<string, StartEstimate>,
): StartEstimate | undefined {
  const claim = (workload.claims ?? []).find((each) =>
    estimates.has(`${workload.namespace}/${each}`),
  );
  return claim === undefined ? undefined : estimates.get(`${workload.namespace}/${claim}`);
}

/** Return the workloads by namespace and claim. */
export function workloadsByClaim(workloads: readonly WorkloadRow[]): Map<string, WorkloadRow> {
  return new Map(
    workloads.flatMap((workload) =>
      (workload.claims ?? []).map((claim) => [`${workload.namespace}/${claim}`, workload]),
    ),
  );
}
