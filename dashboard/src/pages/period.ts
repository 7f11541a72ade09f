// Time ranges of the aggregation API: whole hours, and days in the chosen time zone.
import { locale } from "../i18n/language";
import { t } from "../i18n/text";
import type { Zone } from "../state/session";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
/** The longest period of a report. */
const MOST_DAYS = 400;

/** Return the last `hours` whole hours. Constant within an hour, and so is the URL. */
export function lastHours(
  hours: number,
  now = Date.now(),
): { start_time: string; end_time: string } {
  const end = Math.floor(now / HOUR) * HOUR;
  return { start_time: iso(end - hours * HOUR), end_time: iso(end) };
}

/** Return the whole hours around a range in seconds. */
export function hoursOf(range: { start: number; end: number }): {
  start_time: string;
  end_time: string;
} {
  return {
    start_time: iso(Math.floor((range.start * 1000) / HOUR) * HOUR),
    end_time: iso(Math.ceil((range.end * 1000) / HOUR) * HOUR),
  };
}

/** First and last day, such as 2026-11-09. */
export interface Days {
  first: string;
  last: string;
}

/** Return the name of a zone for the API; undefined for UTC, its default. */
export function zoneName(zone: Zone): string | undefined {
  const name = zone === "UTC" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name === "UTC" || name === "Etc/UTC" ? undefined : name;
}

/** Return the day of a time in a zone, such as 2026-11-09. */
export function dayOf(at: number, zone: Zone): string {
  if (zone === "UTC") return day(at);
  const date = new Date(at);
  return day(Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()));
}

/** Return the start of a day in a zone, in milliseconds. */
export function startOf(text: string, zone: Zone): number {
  return Date.parse(zone === "UTC" ? text : `${text}T00:00`);
}

/** Return the day that is some days later. */
export function addDays(text: string, days: number): string {
  return day(Date.parse(text) + days * DAY);
}

/** Return how many days there are. */
export function lengthOf(days: Days): number {
  return Math.round((Date.parse(days.last) - Date.parse(days.first)) / DAY) + 1;
}

/** Return the days before: the month before a whole month, or else as many days. */
export function daysBefore(days: Days): Days {
  const last = addDays(days.first, -1);
  const month = monthOf(days.first.slice(0, 7));
  if (month.first === days.first && month.last === days.last) return monthOf(last.slice(0, 7));
  return { first: addDays(days.first, -lengthOf(days)), last };
}

/** Return what is wrong with days; empty if they are fine. */
export function problemOf(days: Days): string {
  if (Number.isNaN(Date.parse(days.first)) || Number.isNaN(Date.parse(days.last)))
    return t("Enter both days.");
  if (days.first > days.last) return t("The last day is before the first.");
  return lengthOf(days) > MOST_DAYS ? t("Choose at most {days} days.", { days: MOST_DAYS }) : "";
}

/** Return the last `days` days including today. */
export function lastDays(days: number, now = Date.now(), zone: Zone = "UTC"): Days {
  const last = dayOf(now, zone);
  return { first: addDays(last, 1 - days), last };
}

/** Return the days of a month such as 2026-11; the current month for invalid input. */
export function monthOf(month: string, now = Date.now(), zone: Zone = "UTC"): Days {
  const valid = /^\d{4}-(0[1-9]|1[0-2])$/.test(month) ? month : dayOf(now, zone).slice(0, 7);
  const [year = 1970, number = 1] = valid.split("-").map(Number);
  return { first: day(Date.UTC(year, number - 1, 1)), last: day(Date.UTC(year, number, 1) - DAY) };
}

/** Format days for the report API. */
export function periodOf(days: Days): string {
  return `${days.first}..${days.last}`;
}

/** Format days for the waste API. */
export function spanOf(days: Days, zone: Zone = "UTC"): { start_time: string; end_time: string } {
  return {
    start_time: iso(startOf(days.first, zone)),
    end_time: iso(startOf(addDays(days.last, 1), zone) - 1000),
  };
}

/** Format days: 9–15 Nov 2026. */
export function formatDays(days: Days): string {
  const format = new Intl.DateTimeFormat(locale, {
    day: "numeric",
    month: "short",
    year: "numeric",
    timeZone: "UTC",
  });
  const [first, last] = [Date.parse(days.first), Date.parse(days.last)];
  return Number.isNaN(first) || Number.isNaN(last) ? "" : format.formatRange(first, last);
}

export function hourAt(statHour: string): number {
  return Date.parse(statHour);
}

function iso(at: number): string {
  return new Date(at).toISOString().replace(".000Z", "Z");
}

function day(at: number): string {
  return new Date(at).toISOString().slice(0, 10);
}
