// The title of the browser tab.
import { useEffect } from "preact/hooks";

/** Show a name in the title; the name of an object replaces the one of its page. */
export function useTitle(name: string): void {
  useEffect(() => {
    document.title = name ? `${name} · gpufleet` : "gpufleet";
  }, [name]);
}
