// Spans of time as the aggregation API takes them: whole hours in UTC.

const HOUR = 3_600_000;

/** The last `hours` whole hours. Stable within an hour, so that the address is too. */
export function lastHours(hours: number, now = Date.now()): { start_time: string; end_time: string } {
  const end = Math.floor(now / HOUR) * HOUR;
  return { start_time: iso(end - hours * HOUR), end_time: iso(end) };
}

/** A month, given as 2026-11. */
export function monthOf(month: string): { start_time: string; end_time: string } {
  const [year = 1970, number = 1] = month.split("-").map(Number);
  return { start_time: iso(Date.UTC(year, number - 1, 1)), end_time: iso(Date.UTC(year, number, 1) - HOUR) };
}

export function hourAt(statHour: string): number {
  return Date.parse(statHour);
}

function iso(at: number): string {
  return new Date(at).toISOString().replace(".000Z", "Z");
}
