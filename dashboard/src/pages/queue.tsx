// Queue page: what waits for GPUs, in order, when each unit is expected to start, and the GpuQueues.
import type { QueueList, QueuePage as Units, WorkloadRow } from "../api/types";
import { periodText } from "../i18n/states";
import { plural, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link } from "../state/route";
import { useSession } from "../state/session";
import { usePending, useQueue } from "../state/waiting";
import { NONE, count, decimal, list, moment, percent, span } from "../ui/format";
import { Badge, Card, Empty, Loaded, PageHead, useNow } from "../ui/components";
import { Table } from "../ui/table";
import { startText } from "../ui/estimate";
import { reasonOf } from "./request";
import { dueShares, inTree } from "./shares";
import { expectedOf, waitingElsewhere, workloadsByClaim } from "./waiting";

const UNAVAILABLE = t("This server has no Kubernetes cluster with claims");
const MOST_UNITS = 200;

export function QueuePage(props: { query: Record<string, string> }) {
  const { cluster } = props.query;
  const units = useQueue(cluster);
  const pending = usePending(cluster).data?.data ?? [];
  const queues = useResource<QueueList>("api/queues", { cluster }, { every: 30_000 });
  const waiting = units.data?.data;
  const elsewhere = waitingElsewhere(pending);
  return (
    <>
      <PageHead
        title={t("Queue")}
        sub={
          waiting === undefined
            ? " "
            : plural(
                waiting.length,
                "{n} unit waits for GPUs; a unit is a pod or a gang",
                "{n} units wait for GPUs; a unit is a pod or a gang",
              )
        }
      />
      <div class="grid">
        <Card title={t("In order")} note={t("expected starts with 90% intervals")} flush>
          <Loaded of={units} missing={UNAVAILABLE} lines={6}>
            {(data) =>
              data.data.length ? (
                <UnitTable units={data.data} pending={pending} />
              ) : (
                <Empty title={t("Nothing waits")}>
                  {t("Every pod that requests GPUs has them.")}
                </Empty>
              )
            }
          </Loaded>
        </Card>
      </div>
      {units.data !== undefined || units.error?.missing ? (
        <Elsewhere workloads={elsewhere} />
      ) : null}
      <div class="grid">
        <Card title={t("GpuQueues")} note={t("guarantees, shares and budgets")} flush>
          <Loaded of={queues} missing={UNAVAILABLE}>
            {(data) =>
              data.data.length ? (
                <QueueTable queues={data.data} units={waiting ?? []} />
              ) : (
                <Empty title={t("No GpuQueues")}>
                  {t(
                    "All namespaces share one queue. GpuQueues give teams guarantees, shares and budgets.",
                  )}
                </Empty>
              )
            }
          </Loaded>
        </Card>
      </div>
    </>
  );
}

/** What waits in the queue of Slurm or of another scheduler, in the order of its age. */
function Elsewhere(props: { workloads: readonly WorkloadRow[] }) {
  const now = useNow(30_000);
  if (!props.workloads.length) return null;
  return (
    <div class="grid">
      <Card
        title={t("Waiting in other queues")}
        note={t("of Slurm, Kueue and other schedulers")}
        flush
      >
        <Table label={t("Waiting in other queues")}>
          <thead>
            <tr>
              <th>{t("Workload")}</th>
              <th class="right">{t("GPUs")}</th>
              <th class="right">{t("Waiting for")}</th>
              <th>{t("Reason")}</th>
              <th>{t("Expected start")}</th>
            </tr>
          </thead>
          <tbody>
            {[...props.workloads]
              .sort((a, b) => a.startAt - b.startAt)
              .slice(0, MOST_UNITS)
              .map((workload) => (
                <tr key={workload.uid}>
                  <td class="name">
                    <a href={link(["workloads", workload.uid])}>{workload.name}</a>
                    <div class="muted small">{ownerOf(workload)}</div>
                  </td>
                  <td class="right">{count(workload.gpuRequested)}</td>
                  <td class="right">{span(Math.max(0, now / 1000 - workload.startAt))}</td>
                  <td class="words">{reasonOf(workload) || NONE}</td>
                  <td>{startText({ expected: expectedOf(workload) }, now)}</td>
                </tr>
              ))}
          </tbody>
        </Table>
      </Card>
    </div>
  );
}

function ownerOf(workload: WorkloadRow): string {
  return [workload.namespace, workload.user, workload.source].filter(Boolean).join(" · ");
}

type Unit = Units["data"][number];
type Queue = QueueList["data"][number];

function UnitTable(props: { units: Unit[]; pending: readonly WorkloadRow[] }) {
  const workloads = workloadsByClaim(props.pending);
  const now = useNow(30_000);
  const { zone } = useSession();
  const shown = props.units.slice(0, MOST_UNITS);
  const ends = shown.map((unit) => Date.parse(unit.estimate.latestStart ?? "") || now);
  const last = Math.max(now + 3_600_000, ...ends);
  return (
    <>
      <Table label={t("Waiting units")}>
        <thead>
          <tr>
            <th class="right">{t("Position")}</th>
            <th>{t("Unit")}</th>
            <th class="right">{t("GPUs")}</th>
            <th class="right">{t("Waiting for")}</th>
            <th>{t("Waits for")}</th>
            <th>{t("Expected start")}</th>
            <th class="timeline-head">
              <span>{t("now")}</span> <span>{moment(last, zone)}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((unit) => {
            const workload = workloadOf(unit, workloads);
            const { position, waitsFor, expectedStart } = unit.estimate;
            return (
              <tr key={unit.name}>
                <td class="right number">{position}</td>
                <td class="name">
                  <UnitLink unit={unit} workload={workload} />
                  <div class="muted small">
                    {[unit.namespace, workload?.user].filter(Boolean).join(" · ")}
                  </div>
                </td>
                <td class="right">{decimal(unit.gpus, Number.isInteger(unit.gpus) ? 0 : 1)}</td>
                <td class="right">
                  {workload ? span(Math.max(0, now / 1000 - workload.startAt)) : NONE}
                </td>
                <td class="words">
                  {waitsFor}
                  <div class="muted small">{workload && reasonOf(workload)}</div>
                </td>
                <td>
                  {startText({ expected: expectedStart ? Date.parse(expectedStart) : null }, now)}
                </td>
                <td class="timeline">
                  <Interval unit={unit} now={now} last={last} />
                </td>
              </tr>
            );
          })}
        </tbody>
      </Table>
      {props.units.length > shown.length && (
        <p class="muted small">
          {t("and {more} more", { more: props.units.length - shown.length })}
        </p>
      )}
    </>
  );
}

/** Return the workload whose pods name a claim of the unit. */
function workloadOf(
  unit: Unit,
  workloads: ReadonlyMap<string, WorkloadRow>,
): WorkloadRow | undefined {
  return unit.claims
    .map((claim) => workloads.get(`${unit.namespace}/${claim}`))
    .find((each) => each !== undefined);
}

/** Link to the workload, or to the explanation of the claim if no workload is known. */
function UnitLink(props: { unit: Unit; workload: WorkloadRow | undefined }) {
  const { unit, workload } = props;
  const name = unit.name.replace(`${unit.namespace}/`, "");
  const [claim] = unit.claims;
  if (workload) return <a href={link(["workloads", workload.uid])}>{name}</a>;
  if (!claim) return <>{name}</>;
  return <a href={link(["scheduling"], { claim: `${unit.namespace}/${claim}` })}>{name}</a>;
}

/** The interval of a start on a time line, with a mark at the expected time. */
function Interval(props: { unit: Unit; now: number; last: number }) {
  const { earliestStart, latestStart, expectedStart } = props.unit.estimate;
  if (!earliestStart || !latestStart || !expectedStart) return null;
  const share = (text: string) =>
    Math.min(1, Math.max(0, (Date.parse(text) - props.now) / (props.last - props.now)));
  const [from, to, at] = [share(earliestStart), share(latestStart), share(expectedStart)];
  return (
    <span class="interval" aria-hidden="true">
      <span
        style={{ left: `${from * 100}%`, width: `max(3px, ${(to - from) * 100}%)` }}
        class="interval-bar"
      />
      <span style={{ left: `${at * 100}%` }} class="interval-mark" />
    </span>
  );
}

/** How much of a budget is used, and what it is of. */
function Budget(props: { budget: NonNullable<Queue["budget"]> }) {
  const { percent: used, total, unit, period, hard } = props.budget;
  const about = [
    unit === "cost" ? t("cost") : t("GPU hours"),
    periodText(period),
    hard && t("hard limit"),
  ];
  return (
    <>
      {t("{percent}% of {total}", { percent: used, total })}
      <div class="muted small">{about.filter(Boolean).join(" · ")}</div>
    </>
  );
}

/** The part of the recent use, the fair share by weight, and who is over or under it. */
function Share(props: { share: number; due: number }) {
  const [share, due] = [percent(props.share), percent(props.due)];
  const over = Math.round(props.share * 100) - Math.round(props.due * 100);
  return (
    <>
      {share}
      <div class="muted small">
        {over > 0
          ? t("over its fair share, {share}", { share: due })
          : over < 0
            ? t("under its fair share, {share}", { share: due })
            : t("its fair share")}
      </div>
    </>
  );
}

function QueueTable(props: { queues: readonly Queue[]; units: readonly Unit[] }) {
  const due = dueShares(props.queues);
  const waiting = (queue: Queue) =>
    props.units
      .filter((unit) => queue.namespaces.includes(unit.namespace))
      .reduce((sum, unit) => sum + unit.gpus, 0);
  return (
    <Table label={t("GpuQueues")}>
      <thead>
        <tr>
          <th>{t("Queue")}</th>
          <th class="right">{t("Used")}</th>
          <th class="right">{t("Guaranteed")}</th>
          <th class="right">{t("Borrowed")}</th>
          <th class="right">{t("Limit")}</th>
          <th class="right">{t("Waiting")}</th>
          <th class="right">{t("Weight")}</th>
          <th class="right">{t("Share of recent use")}</th>
          <th>{t("Budget")}</th>
          <th>{t("State")}</th>
        </tr>
      </thead>
      <tbody>
        {inTree(props.queues).map(({ queue, depth, within }) => (
          <tr key={queue.name}>
            <td class={`name ${depth ? "nested" : ""}`}>
              {queue.name}
              <div class="muted small">
                {list(queue.namespaces) || (within.length > 1 && t("with its queues"))}
              </div>
            </td>
            <td class="right">{decimal(sum(within, (each) => each.used))}</td>
            <td class="right">
              {count(
                Math.max(
                  queue.guaranteed,
                  sum(within.slice(1), (each) => each.guaranteed),
                ),
              )}
            </td>
            <td class="right">{decimal(sum(within, (each) => each.borrowed))}</td>
            <td class="right">{queue.limit == null ? NONE : count(queue.limit)}</td>
            <td class="right">{decimal(sum(within, waiting))}</td>
            <td class="right">{count(queue.weight)}</td>
            <td class="right">
              <Share share={sum(within, (each) => each.share)} due={due.get(queue.name) ?? 0} />
            </td>
            <td>{queue.budget ? <Budget budget={queue.budget} /> : NONE}</td>
            <td class="words">
              {queue.conditions
                .filter((condition) => condition.status === "False")
                .map((condition) => (
                  <div key={condition.type}>
                    <Badge word={condition.reason} tone="warn" />{" "}
                    <span class="muted small">{condition.message}</span>
                  </div>
                ))}
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function sum(queues: readonly Queue[], value: (queue: Queue) => number): number {
  return queues.reduce((total, queue) => total + value(queue), 0);
}
