// The curves of training: their titles, order and formats, and how runs are aligned to compare them.
import type { TrainingRow } from "../api/types";
import type { Format } from "../charts/plot";
import { t } from "../i18n/text";
import { short } from "../ui/format";

export const TITLES: Record<string, string> = {
  loss: t("Loss"),
  tokens_per_second: t("Tokens per second"),
  mfu: "MFU",
  tflops: "TFLOPS",
  TFLOPS: "TFLOPS",
  MFU: "MFU",
  learning_rate: t("Learning rate"),
  grad_norm: t("Gradient norm"),
};
const ORDER = Object.keys(TITLES);
/** The step counter; not drawn as a curve of its own. */
export const STEP = "step";
/** Curves whose axis need not start at zero. */
export const LOOSE = new Set(["loss", "learning_rate", "grad_norm"]);

export function placeOf(name: string): number {
  const place = ORDER.indexOf(name);
  return place < 0 ? ORDER.length : place;
}

export function formatOf(name: string): Format {
  return name.toLowerCase() === "mfu"
    ? (value, digits = 1) => `${(value * 100).toFixed(digits)}%`
    : short;
}

/** What runs are aligned by: the step of training, the time since the first number, or the time of day. */
export type Along = "step" | "elapsed" | "time";

export interface Run {
  name: string;
  rows: readonly TrainingRow[];
}

export interface Curve {
  metric: string;
  lines: { name: string; points: [number, number][] }[];
}

/**
 * Return the curves of several runs, one chart for each metric that a run reports. Positions are in thousandths, as
 * charts take milliseconds. Each line has a value at every position of the others, so that they can be read together.
 */
export function curvesOf(runs: readonly Run[], along: Along): Curve[] {
  const metrics = new Map<string, Curve>();
  for (const run of runs) {
    const position = positionsOf(run.rows, along);
    for (const row of run.rows) {
      if (row.metric === STEP) continue;
      const at = position(row.timestamp);
      if (at === null) continue;
      const curve = metrics.get(row.metric) ?? { metric: row.metric, lines: [] };
      metrics.set(row.metric, curve);
      let line = curve.lines.at(-1);
      if (line?.name !== run.name) curve.lines.push((line = { name: run.name, points: [] }));
      line.points.push([row.value, at]);
    }
  }
  for (const curve of metrics.values()) interpolate(curve);
  return [...metrics.values()].sort(
    (a, b) => placeOf(a.metric) - placeOf(b.metric) || a.metric.localeCompare(b.metric),
  );
}

/** Give each line a value at every position of the others that lies within it. */
function interpolate(curve: Curve): void {
  const everywhere = new Set(curve.lines.flatMap((line) => line.points.map(([, at]) => at)));
  const axis = [...everywhere].sort((a, b) => a - b);
  for (const line of curve.lines) {
    const known = [...line.points].sort((a, b) => a[1] - b[1]);
    let place = 0;
    line.points = axis.flatMap((at) => {
      while (place < known.length - 1 && (known[place + 1]?.[1] ?? 0) <= at) place++;
      const [left, right] = [known[place], known[place + 1]];
      if (!left || at < left[1] || (at > left[1] && !right)) return [];
      const share = right && at > left[1] ? (at - left[1]) / (right[1] - left[1]) : 0;
      return [[left[0] + ((right?.[0] ?? 0) - left[0]) * share, at] as [number, number]];
    });
  }
}

/** Return a function from a time to a position on the axis; null where the step is not known. */
function positionsOf(rows: readonly TrainingRow[], along: Along): (time: number) => number | null {
  if (along === "time") return (time) => time;
  if (along === "elapsed") {
    const first = Math.min(...rows.map((row) => row.timestamp));
    return (time) => time - first;
  }
  const steps = rows
    .filter((row) => row.metric === STEP)
    .map((row) => [row.timestamp, row.value] as const)
    .sort((a, b) => a[0] - b[0]);
  if (steps.length) return (time) => thousandfold(stepAt(steps, time));
  // A run that reports no steps: number its points.
  const times = [...new Set(rows.map((row) => row.timestamp))].sort((a, b) => a - b);
  const places = new Map(times.map((time, place) => [time, place]));
  return (time) => thousandfold(places.get(time) ?? null);
}

function thousandfold(value: number | null): number | null {
  return value === null ? null : value * 1000;
}

/** Return the last step that was reported at or before a time. */
function stepAt(steps: readonly (readonly [number, number])[], time: number): number | null {
  let [low, high] = [0, steps.length - 1];
  if (time < (steps[0]?.[0] ?? Infinity)) return null;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((steps[middle]?.[0] ?? 0) <= time) low = middle;
    else high = middle - 1;
  }
  return steps[low]?.[1] ?? null;
}
