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
      <div class="grid three">
        <Hours title={t("By cause")} hours={costs.byCause} total={costs.lostGpuHours} />
        <Hours title={t("By node")} hours={costs.byNode} total={costs.lostGpuHours} nodes />
        <Hours
          title={t("By model")}
          hours={costs.byModel}
          total={costs.lostGpuHours}
          words={shortModel}
        />
      </div>
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

function Hours(props: {
  title: string;
  hours: Record<string, number>;
  total: number;
  nodes?: boolean;
  /** How a name is shown; as it is by default. */
  words?: (name: string) => string;
}) {
  return (
    <Card title={props.title} note={t("lost GPU hours, last 30 days")} flush>
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
