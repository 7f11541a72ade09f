// Remember how far each entry of the history was scrolled, so that Back returns to the same place.
import { useEffect } from "preact/hooks";

/** How long a page may take to become as long as it was, in milliseconds. */
const LONGEST = 3000;
const kept = new Map<number, number>();

export function useScrollMemory(): void {
  useEffect(() => {
    history.scrollRestoration = "manual";
    let [entry] = enter();
    let page = pageNow();
    let timer = 0;
    const remember = () => kept.set(entry, scrollY);
    const restore = () => {
      const [now, known] = enter();
      const samePage = pageNow() === page;
      [entry, page] = [now, pageNow()];
      clearInterval(timer);
      if (samePage && !known) return; // a filter or a range of the same page
      const target = kept.get(entry) ?? 0;
      const began = Date.now();
      const attempt = () => {
        scrollTo(0, target);
        if (Math.abs(scrollY - target) < 2 || Date.now() - began > LONGEST) clearInterval(timer);
      };
      timer = window.setInterval(attempt, 50);
      attempt();
    };
    addEventListener("scroll", remember, { passive: true });
    addEventListener("hashchange", restore);
    return () => {
      clearInterval(timer);
      removeEventListener("scroll", remember);
      removeEventListener("hashchange", restore);
    };
  }, []);
}

/** Return the number of the current history entry, and whether it was visited before. */
function enter(): [number, boolean] {
  const state = history.state as { entry?: number } | null;
  if (state?.entry !== undefined) return [state.entry, true];
  const entry = Date.now() + Math.random();
  history.replaceState({ entry }, "");
  return [entry, false];
}

function pageNow(): string {
  return location.hash.split("?")[0] ?? "";
}
