// The order of a list, kept in the address as `sort=name` or, the other way round, `sort=-name`.

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

/** Rows in order; those without a value come last either way, and equal ones keep their places. */
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
