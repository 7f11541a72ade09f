// What /api/claims and /api/leases answer.

export interface ClaimRow {
  namespace: string;
  name: string;
  phase: string;
  count: number;
  policy?: string;
  exclusivity?: string;
  nodeName?: string;
  gpus?: number[];
  message?: string;
  gang?: string;
}

export interface LeaseRow {
  name: string;
  nodeName: string;
  gpu: number;
  holders: string[];
  since?: number;
}

export interface Explanation {
  waiting: boolean;
  sentence: string;
  reasons: Record<string, number>;
  remedies: string[];
}

/** A list that comes plain or as a page. */
export function rowsOf<T>(data: T[] | { data: T[] }): T[] {
  return Array.isArray(data) ? data : data.data;
}
