// The requests of the page that fail now, so that one message names them instead of one in each card.
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "../api/client";
import { t } from "../i18n/text";

export interface Problem {
  error: ApiError;
  /** When the data was last confirmed, in milliseconds; 0 for never. */
  at: number;
  reload: () => void;
}

class Problems {
  private open = new Map<object, Problem>();
  private listeners = new Set<() => void>();

  get list(): Problem[] {
    return [...this.open.values()];
  }

  set(key: object, problem: Problem): void {
    this.open.set(key, problem);
    this.notify();
  }

  clear(key: object): void {
    if (this.open.delete(key)) this.notify();
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private notify(): void {
    for (const listener of [...this.listeners]) listener();
  }
}

export const problems = new Problems();

export function useProblems(): Problem[] {
  const [, draw] = useState(0);
  useEffect(() => {
    draw((count) => count + 1); // a request may have failed since the first render
    return problems.listen(() => draw((count) => count + 1));
  }, []);
  return problems.list;
}

export interface Summary {
  text: string;
  remedy: string;
  trace: string;
  count: number;
}

/** Return each message once, with what to do. */
export function summarize(list: readonly Problem[]): Summary[] {
  const found = new Map<string, Summary>();
  for (const { error } of list) {
    const known = found.get(error.message);
    if (known) known.count++;
    else
      found.set(error.message, {
        text: error.message,
        remedy: remedyOf(error.status),
        trace: error.trace,
        count: 1,
      });
  }
  return [...found.values()];
}

function remedyOf(status: number): string {
  if (status === 0) return t("Check your network or VPN, and whether the server runs.");
  if (status === 400) return t("Change or reset the filters of this page.");
  if (status === 403) return t("Ask an operator of gpufleet for the permission.");
  if (status === 429) return t("Too many requests at once; it works again in a moment.");
  if (status === 503)
    return t("The server waits for something it needs; it tries again by itself.");
  return t("If it stays, look for the trace in the log of the server.");
}

/** Return whether the server can't be reached at all, and since when data is missing. */
export function offlineSince(list: readonly Problem[]): number | null {
  const away = list.filter(({ error, at }) => error.status === 0 && at > 0);
  return away.length ? Math.min(...away.map(({ at }) => at)) : null;
}
