// What a workload has or, while it waits, requests.
import { t } from "../i18n/text";
import { list, shortModel } from "../ui/format";

interface Requesting {
  status: string;
  gpuAllocation: Record<string, number>;
  gpuRequested: number;
  gpuModelRequested: string;
}

/** Return whether a workload waits for its GPUs rather than holding some. */
export function isWaiting(workload: Requesting): boolean {
  return workload.status === "Pending" && !Object.keys(workload.gpuAllocation).length;
}

/** Return the number of GPUs: those that are held or were held last, or those that a waiting workload requests. */
export function gpusOf(workload: Requesting): number {
  return isWaiting(workload)
    ? workload.gpuRequested
    : Object.values(workload.gpuAllocation).reduce((sum, each) => sum + each, 0);
}

/** Return the short names of the models of those GPUs; empty if a waiting workload accepts any. */
export function modelsOf(workload: Requesting): string {
  const names = isWaiting(workload)
    ? workload.gpuModelRequested.split(", ").filter(Boolean)
    : Object.keys(workload.gpuAllocation);
  return list(names.map(shortModel));
}

/** Return why a pending workload waits, without the phase that a badge shows. */
export function reasonOf(workload: { waitingReason?: string }): string {
  return (workload.waitingReason ?? "").replace(/^Pending: /, "");
}

/** Return the words before a duration: "Waiting for", "Running for", "Ran for". */
export function durationLabel(status: string, ended: boolean): string {
  if (ended) return t("Ran for");
  return status === "Pending" ? t("Waiting for") : t("Running for");
}
