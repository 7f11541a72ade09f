// The bell: notices with the number of new ones, and browser notifications if somebody wants them.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useLive } from "../api/events";
import type { FindingPage, Me, QueueList, WorkloadMetadata } from "../api/types";
import { t } from "../i18n/text";
import {
  budgetNotices,
  findingNotices,
  firstSeen,
  followed,
  followedWorkload,
  jobNotices,
  markSeen,
  seenAt,
  type Notice,
} from "../state/notices";
import { useResource } from "../state/resource";
import { clusterNow, link } from "../state/route";
import { remember, remembered } from "../state/storage";
import { Ago, Select } from "./components";
import { Dialog } from "./dialog";
import { Icon } from "./icons";

const MOST = 50;
const BROWSER = "gpufleet.notify";
const supported = typeof Notification !== "undefined";

export function useFollowed(): ReadonlySet<string> {
  const [, draw] = useState(0);
  useEffect(() => followed.listen(() => draw((number) => number + 1)), []);
  return followed.names;
}

export function Bell() {
  const [open, setOpen] = useState(false);
  const [seen, setSeen] = useState(seenAt());
  const notices = useNotices();
  useBrowserNotifications(notices);
  const fresh = notices.filter((notice) => notice.at > seen).length;
  const close = () => {
    const now = Date.now();
    markSeen(now);
    setSeen(now);
    setOpen(false);
  };
  return (
    <>
      <button
        class="button icon ghost bell"
        aria-label={fresh ? t("Notifications, {count} new", { count: fresh }) : t("Notifications")}
        title={t("Notifications")}
        onClick={() => setOpen(true)}
      >
        <Icon name="bell" />
        {fresh > 0 && (
          <span class="bell-count num" aria-hidden="true">
            {fresh > 99 ? "99+" : fresh}
          </span>
        )}
      </button>
      {open && (
        <Dialog label={t("Notifications")} class="notices" onClose={close}>
          <h2>{t("Notifications")}</h2>
          <NoticeList notices={notices} seen={seen} onOpen={close} />
          <Preferences />
          <button class="button" onClick={close}>
            {t("Close")}
          </button>
        </Dialog>
      )}
    </>
  );
}

function useNotices(): Notice[] {
  const cluster = clusterNow() || undefined;
  const { recent } = useLive();
  const names = useFollowed();
  const me = useResource<Me>("auth/me");
  const findings = useResource<FindingPage>(
    "api/findings",
    { cluster, pageSize: MOST },
    { every: 60_000, on: ["gpu"] },
  );
  const queues = useResource<QueueList>("api/queues", { cluster }, { every: 120_000 });
  return useMemo(() => {
    // Somebody who is limited to namespaces follows these without choosing them.
    const own = new Set([
      ...names,
      ...(me.data?.namespaces ?? []).map((name) => `namespace ${name}`),
    ]);
    return [
      ...findingNotices(findings.data),
      ...budgetNotices(queues.data, firstSeen),
      ...jobNotices(recent, own),
    ]
      .sort((a, b) => b.at - a.at)
      .slice(0, MOST);
  }, [findings.data, queues.data, recent, names, me.data]);
}

function NoticeList(props: { notices: Notice[]; seen: number; onOpen: () => void }) {
  if (!props.notices.length)
    return (
      <p class="muted">
        {t("No notifications. Findings, budgets and the workloads that you follow appear here.")}
      </p>
    );
  return (
    <ul class="notice-list" tabIndex={0} aria-label={t("Notifications")}>
      {props.notices.map((notice) => (
        <li key={notice.key} class={notice.at > props.seen ? "fresh" : ""}>
          <span class={`badge ${notice.tone}`} aria-hidden="true" />
          <a href={link(notice.path)} onClick={props.onOpen}>
            <strong>{notice.title}</strong> {notice.text}
          </a>
          {notice.at > 0 && (
            <span class="muted small">
              <Ago at={notice.at} />
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}

function Preferences() {
  const names = useFollowed();
  const metadata = useResource<WorkloadMetadata>("api/workloadMetadata", {
    cluster: clusterNow() || undefined,
  });
  const [wanted, setWanted] = useState(remembered(BROWSER) === "on");
  const [said, setSaid] = useState("");
  const follow = [...names].sort();
  const choose = async (on: boolean) => {
    const allowed = !on || (await Notification.requestPermission()) === "granted";
    setSaid(allowed ? "" : t("The browser does not allow notifications of this page."));
    remember(BROWSER, on && allowed ? "on" : "");
    setWanted(on && allowed);
  };
  return (
    <section class="notice-preferences">
      <h3>{t("Follow the jobs of a namespace")}</h3>
      <Select
        label={t("Namespace to follow")}
        value=""
        any={t("Choose a namespace")}
        options={(metadata.data?.namespaces ?? []).filter(
          (name) => !names.has(`namespace ${name}`),
        )}
        onChange={(name) => name && followed.toggle(`namespace ${name}`)}
      />
      <p class="chips">
        {follow.map((name) => (
          <button
            key={name}
            class="chip"
            title={t("Follow no longer")}
            onClick={() => followed.toggle(name)}
          >
            {followedText(name)} <Icon name="close" />
          </button>
        ))}
      </p>
      {supported && (
        <label class="check">
          <input
            type="checkbox"
            checked={wanted}
            onChange={(event) => void choose(event.currentTarget.checked)}
          />
          {t("Also notify me in the browser while this page is open")}
        </label>
      )}
      {said && (
        <p class="small failed-words" role="alert">
          {said}
        </p>
      )}
    </section>
  );
}

/** Name what is followed: `namespace NAME` or `workload UID NAME`. */
function followedText(entry: string): string {
  const name = entry.split(" ").at(-1) ?? "";
  return entry.startsWith("workload ")
    ? t("workload {name}", { name })
    : t("namespace {name}", { name });
}

/** Show a browser notification for each notice that is newer than the page. */
function useBrowserNotifications(notices: Notice[]): void {
  const began = useRef(Date.now());
  const told = useRef(new Set<string>());
  useEffect(() => {
    if (!supported || remembered(BROWSER) !== "on" || Notification.permission !== "granted") return;
    for (const notice of notices) {
      if (notice.at < began.current || told.current.has(notice.key)) continue;
      told.current.add(notice.key);
      const shown = new Notification(notice.title, { body: notice.text, tag: notice.key });
      shown.onclick = () => {
        focus();
        location.hash = link(notice.path);
      };
    }
  }, [notices]);
}

/** Follow a workload, or follow it no longer. */
export function FollowButton(props: { uid: string; name: string }) {
  const entry = followedWorkload(useFollowed(), props.uid);
  const on = entry !== "";
  return (
    <button
      class={`button ${on ? "on" : ""}`}
      aria-pressed={on}
      title={t("The bell tells when it starts, ends or fails")}
      onClick={() => followed.toggle(entry || `workload ${props.uid} ${props.name}`)}
    >
      <Icon name="star" /> {on ? t("Following") : t("Follow")}
    </button>
  );
}
