// Time ranges of the aggregation API: whole hours or days in UTC.

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

/** Return the last `hours` whole hours. Constant within an hour, and so is the URL. */
export function lastHours(
  hours: number,
  now = Date.now(),
): { start_time: string; end_time: string } {
  const end = Math.floor(now / HOUR) * HOUR;
  return { start_time: iso(end - hours * HOUR), end_time: iso(end) };
}

/** First and last day in UTC, such as 2026-11-09. */
export interface Days {
  first: string;
  last: string;
}

/** Return the last `days` days including today. */
export function lastDays(days: number, now = Date.now()): Days {
  return { first: day(now - (days - 1) * DAY), last: day(now) };
}

/** Return the days of a month such as 2026-11; the current month for invalid input. */
export function monthOf(month: string, now = Date.now()): Days {
  const valid = /^\d{4}-(0[1-9]|1[0-2])$/.test(month) ? month : day(now).slice(0, 7);
  const [year = 1970, number = 1] = valid.split("-").map(Number);
  return { first: day(Date.UTC(year, number - 1, 1)), last: day(Date.UTC(year, number, 1) - DAY) };
}

/** Format days for the report API. */
export function periodOf(days: Days): string {
  return `${days.first}..${days.last}`;
}

/** Format days for the waste API. */
export function spanOf(days: Days): { start_time: string; end_time: string } {
  return { start_time: `${days.first}T00:00:00Z`, end_time: `${days.last}T23:59:59Z` };
}

/** Format days: 9–15 Nov 2026. */
export function formatDays(days: Days): string {
  const format = new Intl.DateTimeFormat("en-GB", {
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
