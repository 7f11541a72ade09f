// Fetch what waits for GPUs.
import type { Me, QueuePage, WorkloadPage } from "../api/types";
import { useResource, type Resource } from "./resource";

const MOST = 200;

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
