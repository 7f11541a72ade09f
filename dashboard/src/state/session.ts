// Browser-wide state: token, theme, time zone.
import { useEffect, useState } from "preact/hooks";

export type Theme = "dark" | "light";
export type Zone = "local" | "UTC";

function remembered(key: string): string {
  try {
    return localStorage.getItem(key) ?? "";
  } catch {
    return ""; // storage may be disabled
  }
}

function remember(key: string, value: string): void {
  try {
    if (value) localStorage.setItem(key, value);
    else localStorage.removeItem(key);
  } catch {
    // as above
  }
}

class Session {
  token = remembered("gpufleet.token");
  theme: Theme =
    (remembered("gpufleet.theme") as Theme) ||
    (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  zone: Zone = remembered("gpufleet.zone") === "UTC" ? "UTC" : "local";
  /** The reason for the login form; null while no login is needed. */
  loginReason: string | null = null;
  /** The namespaces that the server limits this caller to; null while it shows every namespace. */
  namespaces: string[] | null = null;
  private listeners = new Set<() => void>();

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private notify(): void {
    for (const listener of [...this.listeners]) listener();
  }

  needLogin(reason: string): void {
    if (this.loginReason === null || this.token) {
      this.loginReason = this.token ? reason : "";
      this.token = "";
      this.notify();
    }
  }

  limitTo(namespaces: string[]): void {
    if (this.namespaces?.join("\n") === namespaces.join("\n")) return;
    this.namespaces = namespaces;
    this.notify();
  }

  login(token: string): void {
    this.token = token.trim();
    this.namespaces = null;
    this.loginReason = null;
    remember("gpufleet.token", this.token);
    this.notify();
  }

  logout(): void {
    this.token = "";
    this.namespaces = null;
    this.loginReason = "";
    remember("gpufleet.token", "");
    this.notify();
  }

  setTheme(theme: Theme): void {
    this.theme = theme;
    remember("gpufleet.theme", theme);
    document.documentElement.dataset.theme = theme;
    this.notify();
  }

  setZone(zone: Zone): void {
    this.zone = zone;
    remember("gpufleet.zone", zone);
    this.notify();
  }
}

export const session = new Session();

/** Return the session and re-render when it changes. */
export function useSession(): Session {
  const [, draw] = useState(0);
  useEffect(() => session.listen(() => draw((count) => count + 1)), []);
  return session;
}
