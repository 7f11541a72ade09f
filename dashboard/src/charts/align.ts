// Turn series of [value, milliseconds] into uPlot's columns over one common axis of seconds.

export interface Line {
  name: string;
  points: readonly (readonly [number, number])[];
  /** Draw in a muted colour. */
  quiet?: boolean;
}

/** A line over stacked areas that is not stacked itself: a limit, an earlier period, a forecast. */
export interface Overlay extends Line {
  /** The name of a colour variable of the theme. */
  colour: string;
  dash?: boolean;
  /** The interval between `low` and `high` is filled. */
  band?: "low" | "high";
}

/** Return the value of a limit, which has one everywhere; null for other lines. */
export function limitOf(line: Line): number | null {
  const [first, last, ...more] = line.points;
  return first && last && !more.length && first[0] === last[0] ? first[0] : null;
}

export interface Columns {
  times: number[];
  values: (number | null)[][];
}

/** Align lines; where points are further apart than twice `step` seconds, the lines have a gap. */
export function align(lines: readonly Line[], step = 0): Columns {
  const moments = new Set<number>();
  for (const line of lines) for (const [, at] of line.points) moments.add(at);
  const times = withGaps(
    [...moments].sort((a, b) => a - b),
    step * 1000,
  );
  const place = new Map(times.map((at, index) => [at, index]));
  const values = lines.map((line) => {
    const column: (number | null)[] = new Array(times.length).fill(null);
    for (const [value, at] of line.points) column[place.get(at) as number] = value;
    return column;
  });
  return { times: times.map((at) => at / 1000), values };
}

function withGaps(times: number[], step: number): number[] {
  if (!step) return times;
  return times.flatMap((at, place) =>
    place && at - (times[place - 1] as number) > 2 * step
      ? [(times[place - 1] as number) + step, at]
      : [at],
  );
}

export interface Statistics {
  last: number | null;
  mean: number | null;
  max: number | null;
}

export function statisticsOf(column: readonly (number | null)[]): Statistics {
  const known = column.filter((value): value is number => value !== null);
  if (!known.length) return { last: null, mean: null, max: null };
  return {
    last: known.at(-1) ?? null,
    mean: known.reduce((sum, value) => sum + value, 0) / known.length,
    max: known.reduce((most, value) => Math.max(most, value)),
  };
}

/** Return the place of the time next to `at`; null if none is within `room`. */
export function nearest(times: readonly number[], at: number, room: number): number | null {
  let found: number | null = null;
  let distance = room;
  times.forEach((time, place) => {
    if (Math.abs(time - at) <= distance) [found, distance] = [place, Math.abs(time - at)];
  });
  return found;
}

/** Add each column to those before it for stacked areas; a gap counts as zero, except where no column has a value. */
export function stack(values: readonly (readonly (number | null)[])[]): (number | null)[][] {
  const sum: number[] = [];
  return values.map((column) =>
    column.map((value, place) => {
      if (values.every((other) => other[place] == null)) return null;
      return (sum[place] = (sum[place] ?? 0) + (value ?? 0));
    }),
  );
}

/** Return the last place at which one of these columns has a value. */
export function lastPlace(values: readonly (readonly (number | null)[])[], length: number): number {
  for (let place = length - 1; place >= 0; place--)
    if (values.some((column) => column[place] != null)) return place;
  return length - 1;
}

/** Return the positions of isolated values, which no line shows. */
export function alone(column: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  for (let place = 0; place < column.length; place++)
    if (column[place] != null && column[place - 1] == null && column[place + 1] == null)
      found.push(place);
  return found;
}
