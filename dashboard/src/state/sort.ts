// Sort order in the URL: `sort=name`, or `sort=-name` for descending.

export interface Sort {
  field: string;
  down: boolean;
}

export function parseSort(text: string | undefined, otherwise: string): Sort {
  const words = text || otherwise;
  return words.startsWith("-")
    ? { field: words.slice(1), down: true }
    : { field: words, down: false };
}

export function sortText(sort: Sort): string {
  return `${sort.down ? "-" : ""}${sort.field}`;
}

type Value = string | number | null | undefined;

/** Sort rows stably; rows without a value come last in either direction. */
export function sorted<T>(
  rows: readonly T[],
  sort: Sort,
  values: Record<string, (row: T) => Value>,
): T[] {
  const valueOf = values[sort.field];
  if (!valueOf) return [...rows];
  const sign = sort.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [valueOf(a), valueOf(b)];
    if (left == null || right == null) return left == null ? (right == null ? 0 : 1) : -1;
    return (
      sign * (typeof left === "string" ? left.localeCompare(String(right)) : left - Number(right))
    );
  });
}
