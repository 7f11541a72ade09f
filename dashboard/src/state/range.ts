// The time range of the charts on a page, kept in the URL: a preset (`span=24h`), the whole run of a
// workload (`span=run`) or any range in seconds (`from=…&to=…`).
import { useEffect, useMemo, useState } from "preact/hooks";
import { t } from "../i18n/text";
import { setQuery } from "./route";

export const PRESETS = [
  ["1h", t("{n} h", { n: 1 })],
  ["6h", t("{n} h", { n: 6 })],
  ["24h", t("{n} h", { n: 24 })],
  ["7d", t("{n} d", { n: 7 })],
  ["30d", t("{n} d", { n: 30 })],
] as const;
export type Span = (typeof PRESETS)[number][0] | "run";

const SECONDS: Record<string, number> = {
  "1h": 3600,
  "6h": 21_600,
  "24h": 86_400,
  "7d": 604_800,
  "30d": 2_592_000,
};
const POINTS = 240;
const SHORTEST_STEP = 15;
/** A shorter range has no two readings. */
export const SHORTEST = 60;
/** The API returns who held GPUs for at most so many days. */
export const MOST_DAYS = 92;

/** Start, end and step in seconds. */
export interface Range {
  start: number;
  end: number;
  step: number;
}

/** Start and end of a workload in seconds; 0 for an end that has not come. */
export interface Run {
  start: number;
  end: number;
}

/** Return the preset that a query names; without one the whole run if it has ended, or else `usual`. */
export function presetOf(query: Record<string, string>, run?: Run, usual: Span = "1h"): Span {
  const named = query["span"] ?? "";
  if (named in SECONDS || named === "run") return named as Span;
  return run?.start && run.end ? "run" : usual;
}

/** Return the range that a query names. Presets end now, or with the run. */
export function rangeOf(
  query: Record<string, string>,
  nowMs: number,
  run?: Run,
  usual?: Span,
): Range {
  const chosen = chosenRange(query);
  if (chosen) return { ...chosen, step: stepOf(chosen.end - chosen.start) };
  const now = nowMs / 1000;
  const end = run?.end || now;
  const preset = presetOf(query, run, usual);
  const whole = preset === "run" && run?.start;
  const length = whole ? Math.max(SHORTEST, end - run.start) : (SECONDS[preset] ?? 3600);
  const step = stepOf(length);
  const until = Math.ceil(end / step) * step;
  const start = whole ? Math.floor((end - length) / step) * step : until - length;
  return { start, end: until, step };
}

/** Return the range between `from` and `to`, if the query names a valid one. */
export function chosenRange(query: Record<string, string>): { start: number; end: number } | null {
  const [start, end] = [Number(query["from"]), Number(query["to"])];
  const length = end - start;
  return Number.isSafeInteger(start) && start > 0 && end <= LATEST && isLength(length)
    ? { start, end }
    : null;
}

/** The end of the year 9999, in seconds: fields have no later one. */
const LATEST = 253_402_300_799;

function isLength(seconds: number): boolean {
  return seconds >= SHORTEST && seconds <= MOST_DAYS * 86_400;
}

function stepOf(length: number): number {
  return Math.max(SHORTEST_STEP, Math.round(length / POINTS));
}

/** Return the range of a query; a preset advances with time unless the run has ended. */
export function useRange(query: Record<string, string>, run?: Run, usual?: Span): Range {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const look = () => document.hidden || setNow(Date.now());
    const timer = setInterval(look, 60_000);
    document.addEventListener("visibilitychange", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, []);
  const { start, end, step } = rangeOf(query, now, run, usual);
  return useMemo(() => ({ start, end, step }), [start, end, step]);
}

/** Return what identifies the range while it advances. */
export function rangeName(query: Record<string, string>): string {
  const chosen = chosenRange(query);
  return chosen ? `${chosen.start} ${chosen.end}` : (query["span"] ?? "");
}

/** Show a preset; `usual` is what a URL without one shows. */
export function choosePreset(span: Span, usual: Span): void {
  setQuery({ span: span === usual ? undefined : span, from: undefined, to: undefined }, true);
}

/** Show a part of the time; the browser's Back button returns to the range before. */
export function zoomTo(start: number, end: number): void {
  const middle = (start + end) / 2;
  const half = Math.max(SHORTEST, end - start) / 2;
  setQuery({ from: String(Math.floor(middle - half)), to: String(Math.ceil(middle + half)) }, true);
}

export function resetZoom(): void {
  setQuery({ from: undefined, to: undefined }, true);
}
