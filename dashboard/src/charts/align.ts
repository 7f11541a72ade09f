// Turn series of [value, milliseconds] into uPlot's columns over one common axis of seconds.

export interface Line {
  name: string;
  points: readonly (readonly [number, number])[];
  /** Draw in a muted colour. */
  quiet?: boolean;
}

export interface Columns {
  times: number[];
  values: (number | null)[][];
}

export function align(lines: readonly Line[]): Columns {
  const moments = new Set<number>();
  for (const line of lines) for (const [, at] of line.points) moments.add(at);
  const times = [...moments].sort((a, b) => a - b);
  const place = new Map(times.map((at, index) => [at, index]));
  const values = lines.map((line) => {
    const column: (number | null)[] = new Array(times.length).fill(null);
    for (const [value, at] of line.points) column[place.get(at) as number] = value;
    return column;
  });
  return { times: times.map((at) => at / 1000), values };
}

/** Add each column to those before it for stacked areas; gaps count as zero. */
export function stack(values: readonly (readonly (number | null)[])[]): number[][] {
  const sum: number[] = [];
  return values.map((column) =>
    column.map((value, place) => {
      sum[place] = (sum[place] ?? 0) + (value ?? 0);
      return sum[place];
    }),
  );
}

/** Return the positions of isolated values, which no line shows. */
export function alone(column: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  for (let place = 0; place < column.length; place++)
    if (column[place] != null && column[place - 1] == null && column[place + 1] == null)
      found.push(place);
  return found;
}
