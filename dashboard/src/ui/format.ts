// Format numbers and times. All functions are pure; `now` and the time zone are arguments.
import { language, locale } from "../i18n/language";
import { plural, t } from "../i18n/text";
import type { Zone } from "../state/session";

const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const two = new Intl.NumberFormat(locale, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const names = new Intl.ListFormat(locale, { type: "conjunction", style: "narrow" });

export const NONE = "–";

export function count(value: number | null | undefined): string {
  return value == null ? NONE : whole.format(value);
}

/** Format a rate of 0–1 as percent. */
export function percent(rate: number | null | undefined, digits = 0): string {
  return rate == null ? NONE : `${digits ? one.format(rate * 100) : whole.format(rate * 100)}%`;
}

export function decimal(value: number | null | undefined, digits: 0 | 1 | 2 = 1): string {
  if (value == null) return NONE;
  return digits === 0 ? whole.format(value) : digits === 1 ? one.format(value) : two.format(value);
}

/** Format a cost with its currency, if one is configured. */
export function money(
  cost: number | null | undefined,
  currency: string | undefined,
  digits: 0 | 1 | 2 = 0,
): string {
  const amount = decimal(cost, digits);
  return currency && amount !== NONE ? `${amount} ${currency}` : amount;
}

/** Return a heading with the unit of its numbers, if there is one. */
export function withUnit(words: string, unit: string | undefined): string {
  return unit ? t("{words} ({unit})", { words, unit }) : words;
}

/** Format a number of any size in a few characters, or with some digits: 41,200 → 41.2k. */
export function short(value: number, digits?: number): string {
  if (digits !== undefined) return value.toFixed(digits);
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  if (size > 0 && size < 1e-3) return value.toExponential(1);
  return size >= 1 ? trim(value) : Number(value.toPrecision(3)).toString();
}

function trim(value: number): string {
  return Number(
    value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2),
  ).toString();
}

const SPANS = (
  [
    [86_400, "day"],
    [3600, "hour"],
    [60, "minute"],
    [1, "second"],
  ] as const
).map(([size, unit]) => ({
  size,
  format: new Intl.NumberFormat(locale, {
    style: "unit",
    unit,
    unitDisplay: language === "en" ? "narrow" : "short", // Japanese has Latin letters for narrow units
  }),
}));

/** Format a duration in its two largest units, without seconds from a minute on: 2d 4h. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const place = SPANS.findIndex(({ size }) => whole >= size);
  const [main, next] = SPANS.slice(place);
  if (!main || !next) return compact(SPANS.at(-1)?.format.format(whole) ?? "");
  const count = Math.floor(whole / main.size);
  const rest = next.size > 1 ? Math.floor((whole - count * main.size) / next.size) : 0;
  const text = main.format.format(count);
  return compact(rest && count < 10 ? `${text} ${next.format.format(rest)}` : text);
}

/** Chinese and Japanese have no spaces between numbers and units, and Chinese has short minutes after hours. */
function compact(duration: string): string {
  if (language === "en") return duration;
  return duration.replaceAll(" ", "").replace(/(小时\d+分)钟/, "$1");
}

export function ago(at: number, now: number): string {
  const seconds = (now - at) / 1000;
  return seconds < 5 ? t("just now") : t("{time} ago", { time: span(seconds) });
}

/** Format names: a, b, c. */
export function list(of: readonly string[]): string {
  return names.format(of);
}

export function yearOf(at: number, zone: Zone): number {
  const date = new Date(at);
  return zone === "UTC" ? date.getUTCFullYear() : date.getFullYear();
}

/** Format a time (milliseconds) in a zone, with the year unless it is the current one. */
export function moment(at: number, zone: Zone, seconds = false, now = Date.now()): string {
  return new Intl.DateTimeFormat(locale, {
    day: language === "en" ? "2-digit" : "numeric",
    month: "short",
    ...(yearOf(at, zone) === yearOf(now, zone) ? {} : { year: "numeric" }),
    hour: "2-digit",
    minute: "2-digit",
    ...(seconds ? { second: "2-digit" } : {}),
    ...(zone === "UTC" ? { timeZone: "UTC" } : {}),
  }).format(at);
}

/** Format the day of a time: Mon, 9 Nov. */
export function weekday(at: number, zone: Zone): string {
  return new Intl.DateTimeFormat(locale, {
    weekday: "short",
    day: "numeric",
    month: "short",
    ...(zone === "UTC" ? { timeZone: "UTC" } : {}),
  }).format(at);
}

/** Format the day of a time without its name: 9 Nov. */
export function dayAndMonth(at: number, zone: Zone): string {
  return new Intl.DateTimeFormat(locale, {
    day: "numeric",
    month: "short",
    ...(zone === "UTC" ? { timeZone: "UTC" } : {}),
  }).format(at);
}

/** Format a time in both zones, for a tooltip. */
export function bothZones(at: number): string {
  return t("{local} local · {utc} UTC", {
    local: moment(at, "local", true),
    utc: moment(at, "UTC", true),
  });
}

/** Shorten a model name, the same for every source: NVIDIA-A100-SXM4-80GB → A100 SXM4 80GB. */
export function shortModel(model: string): string {
  return model.replace(/[_-]/g, " ").replace(/^(NVIDIA|AMD Instinct|AMD|Intel)\s+/i, "") || NONE;
}

/** Return what a select shows for each model. */
export function modelWords(models: readonly string[]): Record<string, string> {
  return Object.fromEntries(models.map((model) => [model, shortModel(model)]));
}

/** Shorten a UID to what tells runs apart: the first digits of a UUID, or the number of a Slurm job. */
export function shortUid(uid: string): string {
  return /^[a-z]+-\d+-/.exec(uid)?.[0].slice(0, -1) ?? uid.slice(0, 8);
}

/** Return which namespaces the data is limited to: "Limited to namespaces a, b." */
export function limitText(namespaces: string[], shown = 5): string {
  const named = list(namespaces.slice(0, shown));
  const more = namespaces.length - shown;
  if (!namespaces.length) return t("Limited to no namespace.");
  if (more > 0) return t("Limited to namespaces {names} and {more} more.", { names: named, more });
  return plural(
    namespaces.length,
    "Limited to namespace {names}.",
    "Limited to namespaces {names}.",
    { names: named },
  );
}

/** Format a time for a date and time field: 2026-11-16T09:30 in a zone. */
export function fieldTime(at: number, zone: Zone): string {
  const shift = zone === "UTC" ? 0 : new Date(at).getTimezoneOffset() * 60_000;
  return new Date(at - shift).toISOString().slice(0, 16);
}

/** Parse the text of such a field into milliseconds; NaN if it is no time. */
export function parseFieldTime(text: string, zone: Zone): number {
  return Date.parse(zone === "UTC" ? `${text}Z` : text);
}

/** Format the labels of an axis with as many digits as make them differ. */
export function distinctLabels(
  values: readonly number[],
  format: (value: number, digits?: number) => string,
): string[] {
  let labels = values.map((value) => format(value));
  for (let digits = 1; digits <= 6 && new Set(labels).size < labels.length; digits++)
    labels = values.map((value) => format(value, digits));
  return labels;
}
