// The route in the URL fragment: `#/workloads/abc?namespace=ml`. Filters are kept only here, so that a
// URL can be shared.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** Decoded path segments. */
  path: string[];
  query: Record<string, string>;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // invalid percent encoding
  }
}

export function hrefOf(path: string[], query: Record<string, string | undefined> = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) words.set(name, value);
  const tail = words.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${tail ? `?${tail}` : ""}`;
}

/** Return the current cluster; empty for the default one. */
export function clusterNow(): string {
  return parseRoute(location.hash).query["cluster"] ?? "";
}

/** Return a link within the current cluster. */
export function link(path: string[], query: Record<string, string | undefined> = {}): string {
  return hrefOf(path, { ...query, cluster: clusterNow() || undefined });
}

/** Change query parameters; adds a history entry only if `step` is set. */
export function setQuery(changes: Record<string, string | undefined>, step = false): void {
  const route = parseRoute(location.hash);
  const href = hrefOf(route.path, { ...route.query, ...changes });
  if (step) location.hash = href;
  else {
    history.replaceState(history.state, "", href);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Return the number of a page that the URL names; the first one if it names none. */
export function pageOf(text: string | undefined): number {
  return Math.min(1_000_000, Math.max(1, Math.floor(Number(text)) || 1));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const follow = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
