// Named views of a page: its address with filters, range and order, kept in this browser.
import { useEffect, useState } from "preact/hooks";
import { rememberList, rememberedList } from "./storage";

const KEY = "gpufleet.views";
const MOST = 100;

export interface View {
  name: string;
  /** Such as #/workloads?status=Pending. */
  href: string;
}

let views = rememberedList<View>(KEY).filter(
  (view) => typeof view?.name === "string" && String(view.href).startsWith("#/"),
);
const listeners = new Set<() => void>();

/** Save a view; one with the same name is replaced. */
export function saveView(name: string, href: string): void {
  change([{ name, href }, ...views.filter((view) => view.name !== name)].slice(0, MOST));
}

export function removeView(name: string): void {
  change(views.filter((view) => view.name !== name));
}

export function savedViews(): View[] {
  return views;
}

function change(next: View[]): void {
  views = next;
  rememberList(KEY, views);
  for (const listener of [...listeners]) listener();
}

export function useViews(): View[] {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((count) => count + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return views;
}
