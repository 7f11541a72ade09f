// Group claims into gangs: a gang starts with all of its pods or none.
import type { ClaimPage } from "../api/types";

type Claim = ClaimPage["data"][number];

export interface Gang {
  namespace: string;
  name: string;
  claims: Claim[];
  /** Pods with allocated GPUs. */
  placed: number;
  /** Number of pods in the gang; null if no claim specifies it. */
  size: number | null;
  gpus: number;
  nodes: string[];
  phase: "Bound" | "Partly placed" | "Pending";
}

/** Return the gangs of some claims: waiting ones first, then the largest. */
export function gangsOf(claims: readonly Claim[]): Gang[] {
  const found = new Map<string, Claim[]>();
  for (const claim of claims) {
    if (!claim.gang) continue;
    const key = `${claim.namespace}/${claim.gang}`;
    found.set(key, [...(found.get(key) ?? []), claim]);
  }
  const gangs = [...found.values()].map(gangOf);
  return gangs.sort(
    (a, b) =>
      Number(a.phase === "Bound") - Number(b.phase === "Bound") ||
      b.gpus - a.gpus ||
      a.name.localeCompare(b.name),
  );
}

function gangOf(claims: Claim[]): Gang {
  const pods = claims.flatMap((claim) => claim.allocations);
  const size = claims.reduce<number | null>(
    (most, claim) => (claim.gangSize === null ? most : Math.max(most ?? 0, claim.gangSize)),
    null,
  );
  const each = claims[0]?.count ?? 0;
  const whole = pods.length > 0 && pods.length >= (size ?? 0);
  return {
    namespace: claims[0]?.namespace ?? "",
    name: claims[0]?.gang ?? "",
    claims,
    placed: pods.length,
    size,
    gpus: pods.length ? pods.reduce((sum, pod) => sum + pod.gpuIds.length, 0) : each * (size ?? 1),
    nodes: [...new Set(pods.map((pod) => pod.nodeName))].sort(),
    phase: whole ? "Bound" : pods.length ? "Partly placed" : "Pending",
  };
}
