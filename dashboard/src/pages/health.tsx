// Health page: open findings, faults by node over time, repairs, and what faults cost.
import type { FaultCosts, FindingPage, Me, RepairPage } from "../api/types";
import { plural, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link, pageOf, setQuery } from "../state/route";
import { NONE, decimal } from "../ui/format";
import { Ago, Badge, Card, Empty, Loaded, PageHead, Pager, type Tone } from "../ui/components";
import { CostTables, FaultStats } from "./fault_costs";
import { NodeActions, OperatorNote } from "./node_actions";
import { FaultTimeline, Repairs } from "./repairs";
import { Table } from "../ui/table";

const UNAVAILABLE = t("This server has no Kubernetes cluster with agents");
const SIZE = 25;
const SEVERITY: Record<string, Tone> = { Unhealthy: "bad", Degraded: "warn", Warning: "info" };

export function HealthPage(props: { query: Record<string, string> }) {
  const { cluster, page = "1" } = props.query;
  const findings = useResource<FindingPage>(
    "api/findings",
    { cluster, pageNum: pageOf(page), pageSize: SIZE },
    { every: 15_000, on: ["gpu", "node"], keep: true },
  );
  const repairs = useResource<RepairPage>(
    "api/repairs",
    { cluster, pageSize: 100 },
    { every: 15_000, on: ["node"] },
  );
  const costs = useResource<FaultCosts>("api/repairs/costs", { cluster }, { every: 300_000 });
  const me = useResource<Me>("auth/me");
  const reload = () => {
    findings.reload();
    repairs.reload();
  };
  // Without a login, everybody who reaches the server is an operator.
  const operator = me.data !== undefined && me.data.role !== "viewer";
  const changes = operator ? { cluster, onDone: reload } : undefined;
  return (
    <>
      <PageHead
        title={t("Health")}
        sub={
          findings.data ? plural(findings.data.total, "{n} open finding", "{n} open findings") : " "
        }
      />
      {costs.data && <Costs costs={costs.data} repairs={repairs.data} />}
      <div class="grid">
        <Card title={t("Findings")} note={t("what agents and the server see now")} flush>
          <Loaded of={findings} missing={UNAVAILABLE} lines={5}>
            {(data) =>
              data.total ? (
                <>
                  <Findings page={data} changes={changes} />
                  <Pager
                    page={pageOf(page)}
                    size={SIZE}
                    total={data.total}
                    onChange={(number) => setQuery({ page: String(number) }, true)}
                  />
                </>
              ) : (
                <Empty title={t("No findings")}>
                  {t("Every GPU that an agent watches is healthy.")}
                </Empty>
              )
            }
          </Loaded>
          {Object.entries(findings.data?.kernelLogUnread ?? {}).map(([reason, nodes]) => (
            <p class="muted small card-note" key={reason}>
              {plural(
                nodes,
                "The kernel log is not read on {n} node: {reason}",
                "The kernel log is not read on {n} nodes: {reason}",
                { reason },
              )}
            </p>
          ))}
        </Card>
      </div>
      <div class="grid">
        <Card title={t("Repairs")} note={repairs.data ? budget(repairs.data) : ""} flush>
          <Loaded of={repairs} missing={UNAVAILABLE}>
            {(data) =>
              data.data.length ? (
                <Repairs page={data} changes={changes} />
              ) : (
                <Empty title={t("No repairs")}>{t("No node was taken out of service.")}</Empty>
              )
            }
          </Loaded>
        </Card>
      </div>
      {repairs.data && <FaultTimeline page={repairs.data} />}
      {costs.data && <CostTables costs={costs.data} />}
    </>
  );
}

function Costs(props: { costs: FaultCosts; repairs: RepairPage | undefined }) {
  const { costs } = props;
  const worst = Object.entries(costs.byCause).sort(([, a], [, b]) => b - a)[0];
  const open = props.repairs?.data.filter((repair) => repair.phase !== "Healthy").length;
  return (
    <FaultStats
      lost={decimal(costs.lostGpuHours)}
      lostNote={worst ? t("last 30 days, most by {cause}", { cause: worst[0] }) : t("last 30 days")}
      faults={costs.faults}
      faultsNote={t("last 30 days; {n} open", { n: open ?? costs.openFaults })}
      hoursBetween={costs.meanHoursBetweenFailures}
      hoursToRepair={costs.meanHoursToRepair}
    />
  );
}

/** What the disruption budget counts. */
function budget(page: RepairPage): string {
  return t("{disrupted} of {nodes} nodes out of service, {drains} drains in the last hour", {
    disrupted: page.disrupted,
    nodes: page.nodes,
    drains: page.drainsInHour,
  });
}

function Findings(props: {
  page: FindingPage;
  changes: { cluster: string | undefined; onDone: () => void } | undefined;
}) {
  return (
    <Table label={t("Findings")}>
      <thead>
        <tr>
          <th>{t("Node")}</th>
          <th class="right">GPU</th>
          <th>{t("Severity")}</th>
          <th>{t("Finding")}</th>
          <th>{t("What to do")}</th>
          <th>{t("Since")}</th>
          {props.changes && <th>{t("Actions")}</th>}
        </tr>
      </thead>
      <tbody>
        {props.page.data.map((finding) => (
          <tr key={`${finding.node} ${finding.gpu} ${finding.signal} ${finding.rank}`}>
            <td class="name">
              {finding.node ? <a href={link(["nodes", finding.node])}>{finding.node}</a> : NONE}
            </td>
            <td class="right">{finding.gpu ?? NONE}</td>
            <td>
              <Badge word={finding.severity} tone={SEVERITY[finding.severity] ?? "idle"} />
            </td>
            <td class="words">
              {finding.workloadUid ? (
                <a href={link(["workloads", finding.workloadUid])}>{finding.message}</a>
              ) : (
                finding.message
              )}
              <OperatorNote of={finding} />
            </td>
            <td class="words soft">{finding.advice || finding.action}</td>
            <td>{finding.since ? <Ago at={Date.parse(finding.since)} /> : NONE}</td>
            {props.changes && (
              <td>{finding.node && <NodeActions node={finding.node} {...props.changes} />}</td>
            )}
          </tr>
        ))}
      </tbody>
    </Table>
  );
}
