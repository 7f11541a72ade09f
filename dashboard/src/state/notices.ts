// What the bell tells: findings of agents, budgets that run out, and changes of followed workloads and namespaces.
import type { Change, FindingPage, QueueList } from "../api/types";
import { periodText, stateText } from "../i18n/states";
import { t } from "../i18n/text";
import { isUsedUp } from "../pages/usage/budget";
import { remember, rememberList, remembered, rememberedList } from "./storage";

export interface Notice {
  key: string;
  /** When it happened, in milliseconds. */
  at: number;
  tone: "good" | "warn" | "bad" | "info";
  title: string;
  text: string;
  path: string[];
}

const NEARLY_USED = 80;
const TONES: Record<string, Notice["tone"]> = {
  Running: "info",
  Completed: "good",
  Failed: "bad",
};

/** Return one notice for each node with findings: a fault often concerns all of its GPUs. */
export function findingNotices(page: FindingPage | undefined): Notice[] {
  const nodes = new Map<string, FindingPage["data"]>();
  for (const finding of page?.data ?? [])
    nodes.set(finding.node, [...(nodes.get(finding.node) ?? []), finding]);
  return [...nodes].map(([node, findings]) => {
    const worst = findings.find((each) => each.severity === "Unhealthy") ?? findings[0];
    const at = Math.max(...findings.map((each) => (each.since ? Date.parse(each.since) : 0)));
    const alone = findings.length === 1 && worst?.gpu != null;
    const message = worst?.message ?? "";
    return {
      key: `finding ${node} ${findings.length} ${at}`,
      at,
      tone: worst?.severity === "Unhealthy" ? "bad" : "warn",
      title: alone ? t("GPU {gpu} of {node}", { gpu: worst.gpu ?? 0, node }) : node,
      text:
        findings.length > 1
          ? t("{message} and {more} more", { message, more: findings.length - 1 })
          : message,
      path: ["nodes", node],
    };
  });
}

/** Return the budgets that are used to 80% or 100%; they are new when this browser saw them first. */
export function budgetNotices(
  list: QueueList | undefined,
  firstSeen: (key: string) => number,
): Notice[] {
  return (list?.data ?? []).flatMap((queue) => {
    const { budget } = queue;
    if (!budget || (budget.percent < NEARLY_USED && !isUsedUp(queue))) return [];
    const level = isUsedUp(queue) ? 100 : NEARLY_USED;
    const key = `budget ${queue.name} ${level} ${budget.renewedAt}`;
    return [
      {
        key,
        at: firstSeen(key),
        tone: level === 100 ? ("bad" as const) : ("warn" as const),
        title: t("Budget of queue {queue}", { queue: queue.name }),
        text: t("{percent}% of this {period}'s budget is used.", {
          percent: budget.percent,
          period: periodText(budget.period).toLowerCase(),
        }),
        path: ["queue"],
      },
    ];
  });
}

/** Return the starts and ends of workloads that somebody follows, alone or with their namespace. */
export function jobNotices(changes: readonly Change[], followed: ReadonlySet<string>): Notice[] {
  return changes.flatMap((change) => {
    const tone = TONES[change.now];
    if (change.subject !== "workload" || !tone || !isFollowed(change, followed)) return [];
    return [
      {
        key: `workload ${change.name} ${change.now} ${change.at}`,
        at: change.at * 1000,
        tone,
        title: change.title,
        text: change.now === "Running" ? t("started") : stateText(change.now).toLowerCase(),
        path: ["workloads", change.name],
      },
    ];
  });
}

function isFollowed(change: Change, followed: ReadonlySet<string>): boolean {
  // The title is "Job namespace/name".
  const namespace = change.title.split(" ").at(-1)?.split("/")[0] ?? "";
  return followed.has(`namespace ${namespace}`) || followedWorkload(followed, change.name) !== "";
}

/** Return the entry of a workload; empty if it is not followed. */
export function followedWorkload(names: ReadonlySet<string>, uid: string): string {
  return [...names].find((name) => name.startsWith(`workload ${uid} `)) ?? "";
}

const FOLLOWED = "gpufleet.followed";
const SEEN_AT = "gpufleet.notices.seen";
const FIRST_SEEN = "gpufleet.notices.first";
const MOST_FIRST_SEEN = 200;

/** What the person follows: `namespace NAME` or `workload UID NAME`. */
class Followed {
  names = new Set(rememberedList<string>(FOLLOWED));
  private listeners = new Set<() => void>();

  toggle(name: string): void {
    if (!this.names.delete(name)) this.names.add(name);
    this.names = new Set(this.names);
    rememberList(FOLLOWED, [...this.names]);
    for (const listener of [...this.listeners]) listener();
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

export const followed = new Followed();

/** Return until when notices were seen, in milliseconds. */
export function seenAt(): number {
  return Number(remembered(SEEN_AT)) || 0;
}

export function markSeen(now: number): void {
  remember(SEEN_AT, String(now));
}

/** Return when this browser saw something first. */
export function firstSeen(key: string, now = Date.now()): number {
  const known = rememberedList<[string, number]>(FIRST_SEEN);
  const found = known.find(([name]) => name === key);
  if (found) return found[1];
  rememberList(FIRST_SEEN, [[key, now], ...known].slice(0, MOST_FIRST_SEEN));
  return now;
}
