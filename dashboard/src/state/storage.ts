// Values that the browser keeps; without storage they last as long as the page.

export function remembered(key: string): string {
  try {
    return localStorage.getItem(key) ?? "";
  } catch {
    return ""; // storage may be disabled
  }
}

export function remember(key: string, value: string): void {
  try {
    if (value) localStorage.setItem(key, value);
    else localStorage.removeItem(key);
  } catch {
    // as above
  }
}

/** Return a list that was kept as JSON; empty if there is none. */
export function rememberedList<T>(key: string): T[] {
  try {
    const found: unknown = JSON.parse(remembered(key) || "[]");
    return Array.isArray(found) ? (found as T[]) : [];
  } catch {
    return [];
  }
}

export function rememberList(key: string, values: readonly unknown[]): void {
  remember(key, values.length ? JSON.stringify(values) : "");
}
