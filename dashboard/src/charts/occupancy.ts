// Turn the periods of a node into bars: one row for each GPU, and one for GPUs whose index is unknown.
import type { Occupancy, OccupancyPeriod } from "../api/types";
import { t } from "../i18n/text";

export interface Bar {
  key: string;
  period: OccupancyPeriod;
  /** Position and length as shares of the range, 0–1. */
  left: number;
  width: number;
  /** Position and height in the row, 0–1: shares of a GPU are drawn one below the other. */
  top: number;
  height: number;
}

export interface Row {
  name: string;
  bars: Bar[];
}

/** Return the rows of a node between `start` and `end`, in seconds; `now` ends what still lasts. */
export function occupancyRows(
  occupancy: Occupancy,
  start: number,
  end: number,
  now: number,
): Row[] {
  const rows = new Map<string, OccupancyPeriod[]>();
  for (const gpu of occupancy.gpus) rows.set(`GPU ${gpu}`, []);
  for (const period of occupancy.periods) {
    const names = period.gpus.length ? period.gpus.map((gpu) => `GPU ${gpu}`) : [t("Unknown GPU")];
    for (const name of names) rows.set(name, [...(rows.get(name) ?? []), period]);
  }
  const share = (at: number) => Math.min(1, Math.max(0, (at - start) / (end - start)));
  return [...rows].map(([name, periods]) => ({
    name,
    bars: lanes(periods, now).map(({ period, lane, of }) => {
      const left = share(period.start);
      return {
        key: `${period.podName} ${period.start} ${lane}`,
        period,
        left,
        width: share(period.end || now) - left,
        top: lane / of,
        height: 1 / of,
      };
    }),
  }));
}

/** Put overlapping periods of one GPU into lanes. */
function lanes(
  periods: OccupancyPeriod[],
  now: number,
): { period: OccupancyPeriod; lane: number; of: number }[] {
  const ends: number[] = [];
  const placed = [...periods]
    .sort((a, b) => a.start - b.start)
    .map((period) => {
      const free = ends.findIndex((ended) => ended <= period.start);
      const lane = free < 0 ? ends.length : free;
      ends[lane] = period.end || now;
      return { period, lane };
    });
  return placed.map((each) => ({ ...each, of: Math.max(1, ends.length) }));
}

/** Return the share of GPU time that somebody held, of all GPUs with a known index; null without GPUs. */
export function heldShare(
  occupancy: Occupancy,
  start: number,
  end: number,
  now: number,
): number | null {
  const until = Math.min(end, now);
  if (!occupancy.gpus.length || until <= start) return null;
  const held = occupancy.periods.reduce((sum, period) => {
    const seconds = Math.min(period.end || now, until) - Math.max(period.start, start);
    return sum + Math.max(0, seconds) * period.gpuCount * period.share;
  }, 0);
  return held / (occupancy.gpus.length * (until - start));
}
