// The application shell: navigation, cluster, theme, connection state.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { live, useLive } from "./api/events";
import type { ClusterNames, Health } from "./api/types";
import { t } from "./i18n/text";
import icon from "./icon.svg";
import { Account, LimitedView, Login } from "./login";
import { NodePage } from "./pages/node";
import { NodesPage } from "./pages/nodes";
import { OverviewPage } from "./pages/overview/overview";
import { Palette } from "./pages/palette";
import { WorkloadPage } from "./pages/workload";
import { WorkloadsPage } from "./pages/workloads";
import { useResource } from "./state/resource";
import { hrefOf, link, useRoute, type Route } from "./state/route";
import { useScrollMemory } from "./state/scroll";
import { session, useSession } from "./state/session";
import { savedViews } from "./state/views";
import { Bell } from "./ui/bell";
import { Icon, type IconName } from "./ui/icons";
import { PageHead, Select } from "./ui/components";
import { LanguageChoice } from "./ui/language";
import { lazy } from "./ui/lazy";
import { ProblemList, useOffline, useStaleMark } from "./ui/problems";
import { Shortcuts } from "./ui/shortcuts";
import { useTitle } from "./ui/title";

const PAGES: [string, string, IconName][] = [
  ["", t("Overview"), "overview"],
  ["nodes", t("Nodes"), "nodes"],
  ["workloads", t("Workloads"), "workloads"],
  ["queue", t("Queue"), "clock"],
  ["scheduling", t("Scheduling"), "scheduling"],
  ["health", t("Health"), "alert"],
  ["usage", t("Usage"), "usage"],
];

type PageProps = { query: Record<string, string> };
const ComparePage = lazy<PageProps>(() =>
  import("./pages/compare").then((page) => page.ComparePage),
);
const HealthPage = lazy<PageProps>(() => import("./pages/health").then((page) => page.HealthPage));
const QueuePage = lazy<PageProps>(() => import("./pages/queue").then((page) => page.QueuePage));
const SchedulingPage = lazy<PageProps>(() =>
  import("./pages/scheduling/page").then((page) => page.SchedulingPage),
);
const UsagePage = lazy<PageProps>(() =>
  import("./pages/usage/page").then((page) => page.UsagePage),
);

export function App() {
  const { loginReason } = useSession();
  const route = useRoute();
  const cluster = route.query["cluster"] ?? "";
  useEffect(() => live.follow(cluster), [cluster]);
  const [opened, setOpened] = useState<Opened>(null);
  useKeys(setOpened);
  useScrollMemory();
  const [place = "", name] = route.path;
  useTitle(name ?? PAGES.find(([path]) => path === place)?.[1] ?? "");
  if (loginReason !== null) return <Login reason={loginReason} />;
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={skip}>
        {t("Skip to content")}
      </a>
      <Sidebar route={route} onSearch={() => setOpened("palette")} />
      {opened === "palette" && <Palette pages={destinations()} onClose={() => setOpened(null)} />}
      {opened === "shortcuts" && <Shortcuts onClose={() => setOpened(null)} />}
      <Main>
        <Banners cluster={cluster} />
        <ProblemList />
        <LimitedView />
        <Page key={`${route.path.join("/")} ${cluster}`} route={route} />
      </Main>
    </div>
  );
}

/** The content of the page; while the server can't be reached, each card shows the age of its data. */
function Main(props: { children: ComponentChildren }) {
  return (
    <main {...useStaleMark()} id="main" tabIndex={-1}>
      {props.children}
    </main>
  );
}

type Opened = "palette" | "shortcuts" | null;

function destinations() {
  const pages = PAGES.map(([path, name, icon]) => ({
    key: `page ${path || "overview"}`,
    icon,
    name,
    note: t("page"),
    href: link(path ? [path] : []),
  }));
  const views = savedViews().map(({ name, href }) => ({
    key: `view ${name}`,
    icon: "bookmark" as const,
    name,
    note: t("saved view"),
    href,
  }));
  return [...pages, ...views];
}

function skip(event: Event): void {
  event.preventDefault(); // the fragment is the route
  document.getElementById("main")?.focus();
}

function Page(props: { route: Route }) {
  const [place, name] = props.route.path;
  if (place === undefined) return <OverviewPage query={props.route.query} />;
  if (place === "nodes")
    return name ? (
      <NodePage name={name} query={props.route.query} />
    ) : (
      <NodesPage query={props.route.query} />
    );
  if (place === "workloads") {
    return name ? (
      <WorkloadPage uid={name} query={props.route.query} />
    ) : (
      <WorkloadsPage query={props.route.query} />
    );
  }
  if (place === "compare") return <ComparePage query={props.route.query} />;
  if (place === "usage") return <UsagePage query={props.route.query} />;
  if (place === "queue") return <QueuePage query={props.route.query} />;
  if (place === "health") return <HealthPage query={props.route.query} />;
  if (place === "scheduling") return <SchedulingPage query={props.route.query} />;
  return (
    <>
      <PageHead title={t("Page not found")} />
      <a class="accent" href={link([])}>
        {t("Back to the overview")}
      </a>
    </>
  );
}

function Sidebar(props: { route: Route; onSearch: () => void }) {
  const { theme, zone } = useSession();
  const place = props.route.path[0] ?? "";
  return (
    <div class="side">
      <a class="brand" href={link([])}>
        <img src={icon} alt="" /> gpufleet
      </a>
      <ClusterSwitch route={props.route} />
      <button class="button ghost side-search" aria-label={t("Search")} onClick={props.onSearch}>
        <Icon name="search" /> <span>{t("Search")}</span> <kbd aria-hidden="true">Ctrl K</kbd>
      </button>
      <nav aria-label={t("Pages")}>
        <ul>
          {PAGES.map(([path, words, name]) => (
            <li key={path}>
              <a href={link(path ? [path] : [])} aria-current={path === place ? "page" : undefined}>
                <Icon name={name} /> {words}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="side-foot">
        <div class="side-row">
          <LiveState />
          <LanguageChoice />
        </div>
        <Account />
        <div class="side-row">
          <button
            class="button icon ghost"
            aria-label={theme === "dark" ? t("Use the light theme") : t("Use the dark theme")}
            onClick={() => session.setTheme(theme === "dark" ? "light" : "dark")}
          >
            <Icon name={theme === "dark" ? "sun" : "moon"} />
          </button>
          <button
            class="button ghost"
            title={t("Times in local time or UTC")}
            onClick={() => session.setZone(zone === "UTC" ? "local" : "UTC")}
          >
            <Icon name="clock" /> {zone === "UTC" ? "UTC" : t("Local")}
          </button>
          <a
            class="button icon ghost side-docs"
            href="docs"
            aria-label={t("API documentation")}
            title={t("API documentation")}
          >
            <Icon name="code" />
          </a>
          <Bell />
        </div>
      </div>
    </div>
  );
}

function ClusterSwitch(props: { route: Route }) {
  const { data } = useResource<ClusterNames>("api/clusters");
  if (!data || data.length < 2) return null;
  const chosen = props.route.query["cluster"] || data[0]?.name || "";
  return (
    <Select
      label={t("Cluster")}
      value={chosen}
      options={data.map((cluster) => cluster.name)}
      onChange={(name) => {
        location.hash = hrefOf(props.route.path.slice(0, 1), {
          cluster: name === data[0]?.name ? undefined : name,
        });
      }}
    />
  );
}

function LiveState() {
  const { state } = useLive();
  const offline = useOffline() !== null;
  const [name, words] =
    state === "live" && !offline
      ? ["live-on", t("Live")]
      : state === "lost" || offline
        ? ["live-lost", t("Reconnecting…")]
        : ["live-wait", t("Connecting…")];
  return (
    <div class="live" role="status">
      <span class={`dot ${name}`} />
      <span>{words}</span>
    </div>
  );
}

function Banners(props: { cluster: string }) {
  const { data } = useResource<Health>("api/healthz", {}, { every: 15_000 });
  const down = Object.entries(data?.dependencies ?? {}).filter(
    ([, health]) => health.state === "down",
  );
  const clusters = useResource<ClusterNames>("api/clusters").data;
  const unknown = clusters?.length && !clusters.some(({ name }) => name === props.cluster);
  return (
    <>
      {props.cluster && unknown && (
        <p class="banner bad" role="alert">
          <Icon name="alert" /> <strong>{t("This server has no cluster {cluster}.", props)}</strong>{" "}
          <a class="accent" href="#/">
            {t("Back to the overview")}
          </a>
        </p>
      )}
      {data?.simulated && (
        <p class="banner" role="status">
          <Icon name="flask" /> <strong>{t("Simulated fleet.")}</strong>{" "}
          <span>{t("No real hardware is behind these numbers.")}</span>
        </p>
      )}
      {down.map(([name, health]) => (
        <p class="banner bad" role="alert" key={name}>
          <Icon name="alert" />{" "}
          <strong>{t("{name} is unavailable.", { name: WORDS[name] ?? name })}</strong>{" "}
          <span>{health.message}</span>
        </p>
      ))}
    </>
  );
}

const WORDS: Record<string, string> = {
  metrics: t("The metric source"),
  store: t("The database"),
  kubernetes: t("The Kubernetes API"),
  oidc: t("The identity provider"),
};

/** Keyboard shortcuts; `?` lists them. */
function useKeys(open: (opened: Opened) => void): void {
  useEffect(() => {
    let gone = 0;
    const press = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        open("palette");
        return;
      }
      const target = event.target as HTMLElement;
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)
      )
        return;
      if (event.key === "?") open("shortcuts");
      else if (event.key === "/") {
        const field = document.querySelector<HTMLInputElement>("[data-find]");
        if (field) {
          event.preventDefault();
          field.focus();
        }
      } else if (event.key === "g") gone = Date.now();
      else if (Date.now() - gone < 1000) {
        const place = PAGES.find(([path]) => (path || "overview").startsWith(event.key));
        if (place) location.hash = link(place[0] ? [place[0]] : []);
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
