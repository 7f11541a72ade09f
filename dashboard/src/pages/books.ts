// Add hourly rows up. The table and the chart are both made from what this returns, so that they
// agree to the digit.
import type { GroupHour } from "../api/accounting";
import type { Line } from "../charts/align";

export interface Account {
  name: string;
  /** GPU hours held: the mean count of each hour, added up. */
  hours: number;
  /** GPU hours at work: each hour's count times its utilization. */
  worked: number;
  /** The hours for which the utilization is known. */
  measured: number;
  rows: GroupHour[];
}

export function nameOf(row: GroupHour): string {
  return row.workload_name ?? row.dimension_value ?? row.namespace ?? "";
}

/** One account a name, the largest first. */
export function accounts(rows: readonly GroupHour[]): Account[] {
  const found = new Map<string, Account>();
  for (const row of rows) {
    const name = nameOf(row);
    const account = found.get(name) ?? { name, hours: 0, worked: 0, measured: 0, rows: [] };
    account.hours += row.allocated_gpu_count;
    if (row.avg_utilization != null) {
      account.worked += (row.allocated_gpu_count * row.avg_utilization) / 100;
      account.measured += row.allocated_gpu_count;
    }
    account.rows.push(row);
    found.set(name, account);
  }
  return [...found.values()].sort((a, b) => b.hours - a.hours || a.name.localeCompare(b.name));
}

/** Lines for the largest accounts; the rest is one line, so that the stack is the whole. */
export function stackOf(all: readonly Account[], most: number): Line[] {
  const named = all.slice(0, all.length > most + 1 ? most : most + 1);
  const rest = all.slice(named.length);
  const times = [...new Set(all.flatMap((account) => account.rows.map((row) => row.stat_hour)))].sort();
  const lineOf = (name: string, rows: GroupHour[]): Line => {
    const sums = new Map<string, number>();
    for (const row of rows) sums.set(row.stat_hour, (sums.get(row.stat_hour) ?? 0) + row.allocated_gpu_count);
    return { name, points: times.map((hour) => [sums.get(hour) ?? 0, Date.parse(hour)] as const) };
  };
  const lines = named.map((account) => lineOf(account.name || "none", account.rows));
  return rest.length ? [...lines, lineOf(`${rest.length} others`, rest.flatMap((account) => account.rows))] : lines;
}

/** A table as CSV; a field that a spreadsheet would take for a formula gets a quote in front. */
export function csvOf(rows: readonly (readonly (string | number)[])[]): string {
  const field = (value: string | number) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}
