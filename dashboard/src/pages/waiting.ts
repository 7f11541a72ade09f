// What waits for GPUs: the pending workloads, with the estimates of the queue for those whose pods name a claim.
import type { Me, QueuePage, StartEstimate, WorkloadPage, WorkloadRow } from "../api/types";
import { useResource, type Resource } from "../state/resource";

const MOST = 200;

export interface Waiting {
  workload: WorkloadRow;
  estimate: StartEstimate | undefined;
}

/** Return the units of the queue in their order. */
export function useQueue(cluster: string | undefined): Resource<QueuePage> {
  return useResource<QueuePage>("api/queue", { cluster }, { every: 15_000, on: ["claim", "node"] });
}

/** Return the pending workloads, those that began to wait first at the beginning. */
export function usePending(cluster: string | undefined): Resource<WorkloadPage> {
  return useResource<WorkloadPage>(
    "api/workloads",
    { cluster, status: "Pending", pageSize: MOST },
    { every: 20_000, on: ["workload"] },
  );
}

export function useMe(): string {
  return useResource<Me>("auth/me").data?.user ?? "";
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
