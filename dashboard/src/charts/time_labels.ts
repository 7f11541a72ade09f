// The labels of a time axis.
import { locale } from "../i18n/language";
import type { Zone } from "../state/session";
import { yearOf } from "../ui/format";

const DAY = 86_400;
const STEPS = [1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 20_160].map(
  (minutes) => minutes * 60,
);

function isMidnight(seconds: number, zone: Zone): boolean {
  const at = new Date(seconds * 1000);
  return zone === "UTC"
    ? seconds % DAY === 0
    : at.getHours() === 0 && at.getMinutes() === 0 && at.getSeconds() === 0;
}

/** Format axis times: the date at the start of a day, with the year at the start of a year, else the hour. */
export function timeLabels(splits: number[], where: Zone): string[] {
  const zone = where === "UTC" ? { timeZone: "UTC" } : {};
  const date = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", ...zone });
  const withYear = new Intl.DateTimeFormat(locale, {
    day: "numeric",
    month: "short",
    year: "numeric",
    ...zone,
  });
  const step = splits.length > 1 ? (splits[1] as number) - (splits[0] as number) : 0;
  const hour = new Intl.DateTimeFormat(locale, {
    hour: "2-digit",
    minute: "2-digit",
    ...(step && step < 60 ? { second: "2-digit" } : {}),
    ...zone,
  });
  // The first label is a date only if a day begins there: at 21:00 it would seem to be the start of that day.
  let day =
    step < DAY / 2 && !isMidnight(splits[0] ?? 0, where)
      ? date.format((splits[0] ?? 0) * 1000)
      : "";
  let year = yearOf(Date.now(), where);
  return splits.map((seconds) => {
    const here = date.format(seconds * 1000);
    if (here === day) return hour.format(seconds * 1000);
    day = here;
    const before = year;
    year = yearOf(seconds * 1000, where);
    return year === before ? here : withYear.format(seconds * 1000);
  });
}

/** Return at most `most` whole times of a range in seconds: whole minutes, hours or days of the zone. */
export function wholeTimes(start: number, end: number, zone: Zone, most: number): number[] {
  const behind = zone === "UTC" ? 0 : new Date(start * 1000).getTimezoneOffset() * 60;
  const step = STEPS.find((each) => (end - start) / each < most) ?? (end - start) / most;
  const found: number[] = [];
  let at = Math.ceil((start - behind) / step) * step + behind;
  for (; at <= end; at += step) found.push(at);
  return found;
}
