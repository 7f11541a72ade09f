// Fetch data for a component, refresh it periodically and after events, and keep stale data visible
// with its age when the server does not answer.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, addressOf, read, type Params } from "../api/client";
import { live } from "../api/events";
import type { Change } from "../api/types";
import { problems } from "./problems";
import { session } from "./session";

export interface Resource<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** When the data was last confirmed, in milliseconds; 0 for never. */
  at: number;
  reload: () => void;
}

interface Options {
  /** Refresh interval in milliseconds. */
  every?: number;
  /** Events that trigger a refresh. */
  on?: Change["subject"][];
  /** Keep the old data until the new URL answers, so that a re-sorted list keeps scroll position and focus. */
  keep?: boolean;
  /** Identity of the data if its URL changes with time: data stays visible while the identity is equal. */
  same?: string;
}

const SOON = 1200;

/** Fetch `path` (null: nothing yet). A new URL clears the data unless `keep` is set. */
export function useResource<T>(
  path: string | null,
  params: Params = {},
  options: Options = {},
): Resource<T> {
  const address = path === null ? null : addressOf(path, params);
  const name = address === null ? null : (options.same ?? address);
  const [shown, setShown] = useState<{
    name: string | null;
    data?: T;
    error?: ApiError;
    at: number;
  }>({ name, at: 0 });
  const [attempt, setAttempt] = useState(0);
  const subjects = options.on?.join() ?? "";
  const again = useRef(() => setAttempt((count) => count + 1)).current;

  useEffect(() => {
    if (address === null) return;
    const stop = new AbortController();
    const key = {};
    let timer = 0;
    let confirmed = 0;
    const go = async () => {
      clearTimeout(timer);
      try {
        const data = await read<T>(address, stop.signal);
        if (stop.signal.aborted) return;
        confirmed = Date.now();
        problems.clear(key);
        setShown({ name, data, at: confirmed });
      } catch (error) {
        if (stop.signal.aborted) return;
        const problem = error instanceof ApiError ? error : new ApiError(0, String(error));
        if (problem.missing || problem.status === 401) problems.clear(key);
        else problems.set(key, { error: problem, at: confirmed, reload: again });
        setShown((old) =>
          old.name === name && old.data !== undefined && !problem.missing
            ? { ...old, error: problem }
            : { name, error: problem, at: 0 },
        );
      }
      if (options.every && !stop.signal.aborted) timer = window.setTimeout(tick, options.every);
    };
    const tick = () => {
      if (document.hidden) return; // refreshed when the page becomes visible
      void go();
    };
    const seen = () => {
      if (!document.hidden) void go();
    };
    let soon = 0;
    const unhear = live.hear((change) => {
      if (subjects.split(",").includes(change.subject) && !soon) {
        soon = window.setTimeout(() => {
          soon = 0;
          tick();
        }, SOON);
      }
    });
    const token = session.token;
    const unlisten = session.listen(
      () => session.token !== token && session.loginReason === null && tick(),
    );
    document.addEventListener("visibilitychange", seen);
    void go();
    return () => {
      stop.abort();
      problems.clear(key);
      clearTimeout(timer);
      clearTimeout(soon);
      unhear();
      unlisten();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [address, attempt, options.every, subjects]);

  const fits =
    shown.name === name || (options.keep && shown.data !== undefined && address !== null);
  const current = fits ? shown : { data: undefined, error: undefined, at: 0 };
  return { data: current.data, error: current.error, at: current.at, reload: again };
}
