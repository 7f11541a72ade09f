// Repairs of nodes: what happens now, the steps, earlier faults, and all faults over time.
import type { RepairPage } from "../api/types";
import { t } from "../i18n/text";
import { link } from "../state/route";
import { useSession } from "../state/session";
import { NONE, count, dayAndMonth, list, moment, span } from "../ui/format";
import { Ago, Badge, Card, type Tone } from "../ui/components";
import { NodeActions, OperatorNote } from "./node_actions";
import { Table } from "../ui/table";

const DAYS = 30;
const TICKS = 5;
/** Rows of the timeline; of more nodes, those with the latest faults. */
const MOST = 20;
const PHASE: Record<string, Tone> = { Healthy: "good", Manual: "bad", Observed: "info" };

type Repair = RepairPage["data"][number];

export function Repairs(props: {
  page: RepairPage;
  changes: { cluster: string | undefined; onDone: () => void } | undefined;
}) {
  return (
    <Table label={t("Repairs")}>
      <thead>
        <tr>
          <th>{t("Node")}</th>
          <th>{t("Phase")}</th>
          <th>{t("Cause")}</th>
          <th>{t("Now")}</th>
          <th>{t("Since")}</th>
          <th class="right">{t("Earlier faults")}</th>
          {props.changes && <th>{t("Actions")}</th>}
        </tr>
      </thead>
      <tbody>
        {inOrder(props.page.data).map((repair) => (
          <tr key={repair.node}>
            <td class="name">
              <a href={link(["nodes", repair.node])}>{repair.node}</a>
            </td>
            <td>
              <Badge word={repair.phase} tone={PHASE[repair.phase] ?? "warn"} />
            </td>
            <td class="words">{repair.cause || NONE}</td>
            <td class="words soft">
              {repair.message}
              <OperatorNote of={repair} />
              <Steps repair={repair} />
            </td>
            <td>{repair.since ? <Ago at={Date.parse(repair.since)} /> : NONE}</td>
            <td class="right">{count(repair.history.length)}</td>
            {props.changes && (
              <td>
                {repair.phase !== "Healthy" && (
                  <NodeActions
                    node={repair.node}
                    resume={repair.phase === "Manual"}
                    {...props.changes}
                  />
                )}
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Steps(props: { repair: Repair }) {
  const last = props.repair.history[props.repair.history.length - 1];
  const steps = props.repair.steps.length ? props.repair.steps : (last?.steps ?? []);
  if (!steps.length) return null;
  return (
    <details class="small">
      <summary>{props.repair.steps.length ? t("Steps") : t("Steps of the last repair")}</summary>
      <ol class="steps">
        {steps.map((step, number) => (
          <li key={number}>{step}</li>
        ))}
      </ol>
    </details>
  );
}

/** Nodes that have a fault first, then those with the latest one. */
function inOrder(repairs: Repair[]): Repair[] {
  const since = (repair: Repair) => Date.parse(repair.since ?? "") || 0;
  return [...repairs].sort(
    (a, b) => Number(a.phase === "Healthy") - Number(b.phase === "Healthy") || since(b) - since(a),
  );
}

export function FaultTimeline(props: { page: RepairPage }) {
  const { zone } = useSession();
  const end = Date.now();
  const start = end - DAYS * 86_400_000;
  const rows = inOrder(props.page.data)
    .map((repair) => ({ node: repair.node, bars: barsOf(repair, start, end) }))
    .filter((row) => row.bars.length)
    .slice(0, MOST);
  if (!rows.length) return null;
  return (
    <div class="grid">
      <Card
        title={t("Faults by node")}
        note={t("last {days} days, from the fault until the return", { days: DAYS })}
      >
        <figure class="gantt faults" aria-label={t("Faults of each node over time")}>
          <div class="gantt-rows">
            {rows.map((row) => (
              <div class="gantt-row" key={row.node}>
                <a class="small" href={link(["nodes", row.node])}>
                  {row.node}
                </a>
                <div class="gantt-line">
                  {row.bars.map((bar) => (
                    <span
                      key={bar.from}
                      class={`gantt-bar ${bar.open ? "s-faulty" : "s-repaired"}`}
                      style={{ left: `${bar.left}%`, width: `${bar.width}%` }}
                      title={list([
                        `${bar.cause}: ${moment(bar.from, zone)}`,
                        span((bar.to - bar.from) / 1000),
                        ...(bar.open ? [t("open")] : []),
                      ])}
                    >
                      {bar.width > 6 ? bar.cause : ""}
                    </span>
                  ))}
                </div>
              </div>
            ))}
          </div>
          <div class="gantt-axis muted small num" aria-hidden="true">
            {Array.from({ length: TICKS }, (_, tick) => (
              <span key={tick}>
                {dayAndMonth(start + ((end - start) * tick) / (TICKS - 1), zone)}
              </span>
            ))}
          </div>
        </figure>
      </Card>
    </div>
  );
}

function barsOf(repair: Repair, start: number, end: number) {
  const faults = repair.history.map((fault) => ({
    cause: fault.cause,
    from: Date.parse(fault.opened),
    to: Date.parse(fault.closed),
    open: false,
  }));
  if (repair.opened && repair.phase !== "Healthy") {
    faults.push({ cause: repair.cause, from: Date.parse(repair.opened), to: end, open: true });
  }
  return faults
    .filter((fault) => fault.to > start)
    .map((fault) => {
      const left = (100 * (Math.max(fault.from, start) - start)) / (end - start);
      // A short fault stays visible.
      const width = Math.max(0.4, (100 * (fault.to - start)) / (end - start) - left);
      return { ...fault, left, width };
    });
}
