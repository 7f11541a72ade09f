// Browser-wide state: token, theme, time zone.
import { useEffect, useState } from "preact/hooks";
import { remember, remembered } from "./storage";

export type Theme = "dark" | "light";
export type Zone = "local" | "UTC";

class Session {
  token = remembered("gpufleet.token");
  private chosenTheme: Theme =
    (remembered("gpufleet.theme") as Theme) ||
    (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  zone: Zone = remembered("gpufleet.zone") === "UTC" ? "UTC" : "local";
  printing = false;
  /** The reason for the login form; null while no login is needed. */
  loginReason: string | null = null;
  private listeners = new Set<() => void>();

  /** The theme of what is drawn now; paper is white. */
  get theme(): Theme {
    return this.printing ? "light" : this.chosenTheme;
  }

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

  login(token: string): void {
    this.token = token.trim();
    this.loginReason = null;
    remember("gpufleet.token", this.token);
    this.notify();
  }

  logout(): void {
    this.forgetToken();
    this.loginReason = "";
    this.notify();
  }

  /** Forget the token, because it takes precedence over the session of a sign-in. */
  forgetToken(): void {
    this.token = "";
    remember("gpufleet.token", "");
  }

  setTheme(theme: Theme): void {
    this.chosenTheme = theme;
    remember("gpufleet.theme", theme);
    this.showTheme();
  }

  setPrinting(printing: boolean): void {
    this.printing = printing;
    this.showTheme();
  }

  showTheme(): void {
    document.documentElement.dataset.theme = this.theme;
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
