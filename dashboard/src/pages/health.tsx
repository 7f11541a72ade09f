// Health page: open findings, nodes in repair, and what faults cost.
import type { FaultCosts, FindingPage, RepairPage } from "../api/types";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { NONE, count, decimal } from "../ui/format";
import { Ago, Badge, Card, Empty, Loaded, PageHead, Pager, type Tone } from "../ui/components";
import { Table } from "../ui/table";

const UNAVAILABLE = "This server has no Kubernetes cluster with agents";
const SIZE = 25;
const SEVERITY: Record<string, Tone> = { Unhealthy: "bad", Degraded: "warn", Warning: "info" };

export function HealthPage(props: { query: Record<string, string> }) {
  const { cluster, page = "1" } = props.query;
  const findings = useResource<FindingPage>(
    "api/findings",
    { cluster, pageNum: Number(page), pageSize: SIZE },
    { every: 15_000, on: ["gpu", "node"], keep: true },
  );
  const repairs = useResource<RepairPage>(
    "api/repairs",
    { cluster, pageSize: 100 },
    { every: 15_000, on: ["node"] },
  );
  const costs = useResource<FaultCosts>("api/repairs/costs", { cluster }, { every: 300_000 });
  return (
    <>
      <PageHead
        title="Health"
        sub={findings.data ? `${count(findings.data.total)} open findings` : " "}
      />
      {costs.data && <Costs costs={costs.data} />}
      <div class="grid">
        <Card title="Findings" note="what agents see now" flush>
          <Loaded of={findings} missing={UNAVAILABLE} lines={5}>
            {(data) =>
              data.total ? (
                <>
                  <Findings page={data} />
                  <Pager
                    page={Number(page)}
                    size={SIZE}
                    total={data.total}
                    onChange={(number) => setQuery({ page: String(number) }, true)}
                  />
                </>
              ) : (
                <Empty title="No findings">Every GPU that an agent watches is healthy.</Empty>
              )
            }
          </Loaded>
        </Card>
      </div>
      <div class="grid">
        <Card title="Repairs" note="nodes out of service, and their history" flush>
          <Loaded of={repairs} missing={UNAVAILABLE}>
            {(data) =>
              data.data.length ? (
                <Repairs page={data} />
              ) : (
                <Empty title="No repairs">No node was taken out of service.</Empty>
              )
            }
          </Loaded>
        </Card>
      </div>
    </>
  );
}

function Costs(props: { costs: FaultCosts }) {
  const { costs } = props;
  const worst = Object.entries(costs.byCause).sort(([, a], [, b]) => b - a)[0];
  return (
    <div class="grid stats">
      <Stat
        label="Lost GPU hours"
        value={decimal(costs.lostGpuHours)}
        sub={worst ? `most by ${worst[0]}` : "last 30 days"}
      />
      <Stat
        label="Faults"
        value={count(costs.faults)}
        sub={`${count(costs.openFaults)} open, last 30 days`}
      />
      <Stat
        label="Mean time between failures"
        value={hours(costs.meanHoursBetweenFailures)}
        sub="of a node"
      />
      <Stat label="Mean time to repair" value={hours(costs.meanHoursToRepair)} sub="until return" />
    </div>
  );
}

function hours(value: number | null | undefined): string {
  return value == null ? NONE : `${decimal(value)} h`;
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

function Findings(props: { page: FindingPage }) {
  return (
    <Table label="Findings">
      <thead>
        <tr>
          <th>Node</th>
          <th class="right">GPU</th>
          <th>Severity</th>
          <th>Finding</th>
          <th>What to do</th>
          <th>Since</th>
        </tr>
      </thead>
      <tbody>
        {props.page.data.map((finding) => (
          <tr key={`${finding.node} ${finding.gpu} ${finding.signal}`}>
            <td class="name">
              <a href={link(["nodes", finding.node])}>{finding.node}</a>
            </td>
            <td class="right">{finding.gpu ?? NONE}</td>
            <td>
              <Badge word={finding.severity} tone={SEVERITY[finding.severity] ?? "idle"} />
            </td>
            <td class="words">{finding.message}</td>
            <td class="words soft">{finding.action}</td>
            <td>{finding.since ? <Ago at={Date.parse(finding.since)} /> : NONE}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Repairs(props: { page: RepairPage }) {
  return (
    <Table label="Repairs">
      <thead>
        <tr>
          <th>Node</th>
          <th>Phase</th>
          <th>Cause</th>
          <th>Now</th>
          <th>Since</th>
          <th class="right">Earlier faults</th>
        </tr>
      </thead>
      <tbody>
        {props.page.data.map((repair) => (
          <tr key={repair.node}>
            <td class="name">
              <a href={link(["nodes", repair.node])}>{repair.node}</a>
            </td>
            <td>
              <Badge word={repair.phase || "Healthy"} tone={repair.opened ? "warn" : "good"} />
            </td>
            <td class="words">{repair.cause || NONE}</td>
            <td class="words soft">
              {repair.message}
              {repair.acknowledgedBy && (
                <div class="muted small">acknowledged by {repair.acknowledgedBy}</div>
              )}
            </td>
            <td>{repair.since ? <Ago at={Date.parse(repair.since)} /> : NONE}</td>
            <td class="right">{count(repair.history.length)}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}
