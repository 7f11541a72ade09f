// What faults cost: lost GPU hours by cause, node and model, and the costliest faults.
import type { FaultCosts } from "../api/types";
import { t } from "../i18n/text";
import { link } from "../state/route";
import { NONE, count, decimal, percent, shortModel } from "../ui/format";
import { Card, When } from "../ui/components";
import { Table } from "../ui/table";

const MOST = 10;

export function CostTables(props: { costs: FaultCosts }) {
  const { costs } = props;
  if (!costs.costliest.length) return null;
  return (
    <>
      <LostHours {...costs} total={costs.lostGpuHours} note={t("lost GPU hours, last 30 days")} />
      <div class="grid">
        <Card title={t("Costliest faults")} note={t("last 30 days")} flush>
          <Table label={t("Costliest faults")}>
            <thead>
              <tr>
                <th>{t("Node")}</th>
                <th>{t("Cause")}</th>
                <th>{t("Model")}</th>
                <th class="right">{t("GPUs")}</th>
                <th>{t("From")}</th>
                <th>{t("Until")}</th>
                <th class="right">{t("Lost GPU hours")}</th>
              </tr>
            </thead>
            <tbody>
              {costs.costliest.slice(0, MOST).map((fault) => (
                <tr key={`${fault.node} ${fault.opened}`}>
                  <td class="name">
                    <a href={link(["nodes", fault.node])}>{fault.node}</a>
                  </td>
                  <td>{fault.cause}</td>
                  <td>{shortModel(fault.model)}</td>
                  <td class="right">{count(fault.gpus)}</td>
                  <td>
                    <When at={Date.parse(fault.opened)} />
                  </td>
                  <td>{fault.closed ? <When at={Date.parse(fault.closed)} /> : t("open")}</td>
                  <td class="right">{decimal(fault.lostGpuHours)}</td>
                </tr>
              ))}
            </tbody>
          </Table>
        </Card>
      </div>
    </>
  );
}

export function LostHours(props: {
  byCause: Record<string, number>;
  byNode: Record<string, number>;
  byModel: Record<string, number>;
  total: number;
  note: string;
}) {
  const { total, note } = props;
  return (
    <div class="grid three">
      <Hours title={t("By cause")} hours={props.byCause} total={total} note={note} />
      <Hours title={t("By node")} hours={props.byNode} total={total} note={note} nodes />
      <Hours
        title={t("By model")}
        hours={props.byModel}
        total={total}
        note={note}
        words={shortModel}
      />
    </div>
  );
}

/** How many faults there were, and how long they took. */
export function FaultStats(props: {
  lost: string;
  lostNote: string;
  faults: number;
  faultsNote: string;
  hoursBetween: number | null | undefined;
  hoursToRepair: number | null | undefined;
}) {
  return (
    <div class="grid stats">
      <Stat label={t("Lost GPU hours")} value={props.lost} sub={props.lostNote} />
      <Stat label={t("Faults")} value={count(props.faults)} sub={props.faultsNote} />
      <Stat
        label={t("Mean time between failures")}
        value={meanHours(props.hoursBetween)}
        sub={t("of a node")}
      />
      <Stat
        label={t("Mean time to repair")}
        value={meanHours(props.hoursToRepair)}
        sub={t("until return")}
      />
    </div>
  );
}

function meanHours(value: number | null | undefined): string {
  return value == null ? NONE : t("{n} h", { n: decimal(value, value < 100 ? 1 : 0) });
}

function Stat(props: { label: string; value: string; sub: string }) {
  return (
    <div class="card stat">
      <span class="stat-label">{props.label}</span>
      <span class="stat-value">{props.value}</span>
      <span class="stat-sub">{props.sub}</span>
    </div>
  );
}

function Hours(props: {
  title: string;
  hours: Record<string, number>;
  total: number;
  note: string;
  nodes?: boolean;
  /** How a name is shown; as it is by default. */
  words?: (name: string) => string;
}) {
  return (
    <Card title={props.title} note={props.note} flush>
      <table>
        <tbody>
          {Object.entries(props.hours)
            .slice(0, MOST)
            .map(([name, hours]) => (
              <tr key={name}>
                <td class="name">
                  {props.nodes ? (
                    <a href={link(["nodes", name])}>{name}</a>
                  ) : (
                    (props.words?.(name) ?? name) || NONE
                  )}
                </td>
                <td class="right">{decimal(hours)}</td>
                <td class="right muted">{props.total ? percent(hours / props.total) : NONE}</td>
              </tr>
            ))}
        </tbody>
      </table>
    </Card>
  );
}
