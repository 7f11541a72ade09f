// Format rows as CSV, and the names of files.

export function fileName(name: string, ending: string): string {
  return `${name.replace(/[^\p{L}\p{N}_.-]+/gu, "-").replace(/^-|-$/g, "")}.${ending}`;
}

/** Return rows as CSV; text that a spreadsheet would run as a formula gets an apostrophe. */
export function csvOf(rows: readonly (readonly (string | number | null)[])[]): string {
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function cell(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r\n]/.test(value) && !/^-?[\d.,]+%?$/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
