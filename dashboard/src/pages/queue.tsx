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
import { dueShares, withDepartments } from "./shares";
import { workloadsByClaim } from "./waiting";

const UNAVAILABLE = t("This server has no Kubernetes cluster with claims");
const MOST_UNITS = 200;

export function QueuePage(props: { query: Record<string, string> }) {
  const { cluster } = props.query;
  const units = useQueue(cluster);
  const pending = usePending(cluster).data?.data ?? [];
  const queues = useResource<QueueList>("api/queues", { cluster }, { every: 30_000 });
  const waiting = units.data?.data.length;
  return (
    <>
      <PageHead
        title={t("Queue")}
        sub={
          waiting === undefined
            ? " "
            : plural(
                waiting,
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
      <div class="grid">
        <Card title={t("GpuQueues")} note={t("guarantees, shares and budgets")} flush>
          <Loaded of={queues} missing={UNAVAILABLE}>
            {(data) =>
              data.data.length ? (
                <QueueTable queues={data.data} />
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

type Unit = Units["data"][number];

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
            <th>{t("Waits for")}</th>
            <th>{t("Expected start")}</th>
            <th class="timeline-head">
              <span>{t("now")}</span> <span>{moment(last, zone)}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((unit) => (
            <tr key={unit.name}>
              <td class="right">{unit.estimate.position}</td>
              <td class="name">
                <UnitLink unit={unit} workload={workloadOf(unit, workloads)} />
                <div class="muted small">{unit.namespace}</div>
              </td>
              <td class="words">
                {unit.estimate.waitsFor}
                <div class="muted small">{workloadOf(unit, workloads)?.waitingReason}</div>
              </td>
              <td>
                {unit.estimate.expectedStart
                  ? t("in {time}", {
                      time: span(
                        Math.max(0, (Date.parse(unit.estimate.expectedStart) - now) / 1000),
                      ),
                    })
                  : NONE}
              </td>
              <td class="timeline">
                <Interval unit={unit} now={now} last={last} />
              </td>
            </tr>
          ))}
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
  if (!earliestStart || !latestStart || !expectedStart)
    return <span class="muted small">{t("not known")}</span>;
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

function budgetText(budget: { percent: number; period: string }): string {
  return t("{percent}% of {period}", {
    percent: budget.percent,
    period: periodText(budget.period),
  });
}

/** The part of the recent use, the part that is due by weight, and who is over or under it. */
function Share(props: { share: number; due: number }) {
  const difference = Math.round((props.share - props.due) * 100);
  return (
    <>
      {percent(props.share)}
      <div class="muted small">
        {t("{share} due", { share: percent(props.due) })}
        {difference > 0 ? `, ${t("over")}` : difference < 0 ? `, ${t("under")}` : ""}
      </div>
    </>
  );
}

function QueueTable(props: { queues: QueueList["data"] }) {
  const due = dueShares(props.queues);
  const departments = new Set(props.queues.map((queue) => queue.parent));
  return (
    <Table label={t("GpuQueues")}>
      <thead>
        <tr>
          <th>{t("Queue")}</th>
          <th class="right">{t("Used")}</th>
          <th class="right">{t("Guaranteed")}</th>
          <th class="right">{t("Borrowed")}</th>
          <th class="right">{t("Limit")}</th>
          <th class="right">{t("Pending")}</th>
          <th class="right">{t("Weight")}</th>
          <th class="right">{t("Share of recent use")}</th>
          <th>{t("Budget")}</th>
          <th>{t("State")}</th>
        </tr>
      </thead>
      <tbody>
        {withDepartments(props.queues).map((queue) => (
          <tr key={queue.name}>
            <td class={`name ${queue.parent && "child"}`}>
              {queue.name}
              <div class="muted small">
                {departments.has(queue.name)
                  ? t("department with all of its queues")
                  : list(queue.namespaces)}
              </div>
            </td>
            <td class="right">{decimal(queue.used)}</td>
            <td class="right">{count(queue.guaranteed)}</td>
            <td class="right">{decimal(queue.borrowed)}</td>
            <td class="right">{queue.limit == null ? NONE : count(queue.limit)}</td>
            <td class="right">{decimal(queue.pending)}</td>
            <td class="right">{count(queue.weight)}</td>
            <td class="right">
              <Share share={queue.share} due={due.get(queue.name) ?? 0} />
            </td>
            <td>{queue.budget ? budgetText(queue.budget) : NONE}</td>
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
