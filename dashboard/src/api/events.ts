// Follow /api/events with fetch, because EventSource can't send the bearer token.
import { useEffect, useState } from "preact/hooks";
import { addressOf, authorization } from "./client";
import { splitEvents } from "./sse";
import type { Change } from "./types";

export type LiveState = "connecting" | "live" | "lost";
const KEPT = 200;
const SILENCE = 20_000; // the server sends a keep-alive every 15 s
const LONGEST_WAIT = 30_000;

type Listener = (change: Change) => void;

/** The event stream of one cluster, with its latest events. */
class Live {
  state: LiveState = "connecting";
  recent: Change[] = [];
  /** When the server was last heard of, in milliseconds; 0 for never. */
  heardAt = 0;
  private cluster: string | null = null;
  private stop: AbortController | null = null;
  private hearing = new Set<Listener>();
  private watching = new Set<() => void>();

  /** Follow a cluster; replaces the one followed before. */
  follow(cluster: string): void {
    if (this.cluster === cluster) return;
    this.stop?.abort();
    this.cluster = cluster;
    this.recent = [];
    this.stop = new AbortController();
    void this.keep(cluster, this.stop.signal);
  }

  /** Reconnect immediately, after a login. */
  again(): void {
    const cluster = this.cluster ?? "";
    this.cluster = null;
    this.follow(cluster);
  }

  hear(listener: Listener): () => void {
    this.hearing.add(listener);
    return () => this.hearing.delete(listener);
  }

  watch(listener: () => void): () => void {
    this.watching.add(listener);
    return () => this.watching.delete(listener);
  }

  private become(state: LiveState): void {
    this.state = state;
    for (const listener of [...this.watching]) listener();
  }

  private async keep(cluster: string, signal: AbortSignal): Promise<void> {
    let wait = 1000;
    while (!signal.aborted) {
      const began = Date.now();
      this.become(this.state === "live" ? "connecting" : this.state);
      await this.listen(cluster, signal).catch(() => undefined);
      if (signal.aborted) return;
      this.become("lost");
      wait = Date.now() - began > 10_000 ? 1000 : Math.min(wait * 2, LONGEST_WAIT);
      await new Promise((resume) => setTimeout(resume, wait * (0.75 + Math.random() / 2)));
    }
  }

  private async listen(cluster: string, outer: AbortSignal): Promise<void> {
    const inner = new AbortController();
    const abort = () => inner.abort();
    outer.addEventListener("abort", abort);
    addEventListener("offline", abort);
    let silence = setTimeout(abort, SILENCE);
    try {
      const address = addressOf("api/events", { cluster });
      const response = await fetch(address, {
        headers: authorization(),
        cache: "no-store",
        signal: inner.signal,
      });
      if (!response.ok || !response.body) throw new Error(String(response.status));
      this.become("live");
      const known = new Set(this.recent.map(keyOf));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(abort, SILENCE);
        this.heardAt = Date.now();
        const { events, rest } = splitEvents(text + value);
        text = rest;
        for (const event of events) this.take(event.name, event.data, known);
      }
    } finally {
      clearTimeout(silence);
      outer.removeEventListener("abort", abort);
      removeEventListener("offline", abort);
    }
  }

  private take(name: string, data: string, known: Set<string>): void {
    if (name === "lost") return this.become("live");
    const change = JSON.parse(data) as Change;
    if (known.delete(keyOf(change))) return; // already received before the connection broke
    this.recent = [change, ...this.recent].slice(0, KEPT);
    for (const listener of [...this.hearing]) listener(change);
    this.become("live");
  }
}

function keyOf(change: Change): string {
  return `${change.at} ${change.subject} ${change.name} ${change.now}`;
}

export const live = new Live();

/** Return the stream and re-render when its state or events change. */
export function useLive(): Live {
  const [, draw] = useState(0);
  useEffect(() => {
    draw((count) => count + 1); // it may have changed since the first render
    return live.watch(() => draw((count) => count + 1));
  }, []);
  return live;
}
