// Load a page when it is opened first, so that the first visit loads only what it shows.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Empty, Skeleton } from "./components";
import { t } from "../i18n/text";

/** Return a component whose module is fetched at its first use. */
export function lazy<P extends object>(
  fetchPage: () => Promise<ComponentType<P>>,
): ComponentType<P> {
  let loaded: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const [state, setState] = useState<"wait" | "ready" | "failed">(loaded ? "ready" : "wait");
    useEffect(() => {
      if (loaded) return;
      fetchPage()
        .then((page) => {
          loaded = page;
          setState("ready");
        })
        .catch(() => setState("failed")); // offline, or the server has a newer version of the page
    }, []);
    if (loaded) {
      const Page = loaded;
      return <Page {...props} />;
    }
    if (state === "wait") return <Skeleton lines={8} />;
    return (
      <Empty icon="plug" title={t("This page could not be loaded")}>
        {t("The server can't be reached, or it was updated.")}{" "}
        <button class="linkish accent" onClick={() => location.reload()}>
          {t("Reload")}
        </button>
      </Empty>
    );
  };
}
