// The budgets of GpuQueues: what is used, and when the rest will be.
import type { Forecast, QueueList, Report } from "../../api/types";
import { useSession } from "../../state/session";
import { Card, Meter } from "../../ui/components";
import { NONE, count, money, weekday } from "../../ui/format";
import { priceOf, spendingOf } from "./budget";
import { Table } from "../../ui/table";

type Queue = QueueList["data"][number];

/** A card with the budgets; nothing if no queue has one. */
export function Budgets(props: {
  queues: readonly Queue[];
  forecast: Forecast | undefined;
  report: Report;
}) {
  const shown = props.queues.filter((queue) => queue.budget);
  if (!shown.length) return null;
  return (
    <div class="grid">
      <Card title="Budgets" note="of GpuQueues, in their current period" flush>
        <Table label="Budgets">
          <thead>
            <tr>
              <th>Queue</th>
              <th>Period</th>
              <th class="right">Used</th>
              <th class="right">Budget</th>
              <th class="meter-cell">Share</th>
              <th>Used up</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((queue) => (
              <BudgetRow key={queue.name} queue={queue} {...props} />
            ))}
          </tbody>
        </Table>
      </Card>
    </div>
  );
}

function BudgetRow(props: { queue: Queue; forecast: Forecast | undefined; report: Report }) {
  const { queue } = props;
  const { budget } = queue;
  if (!budget) return null;
  const amount = (value: number) =>
    budget.unit === "cost" ? money(value, props.report.currency) : `${count(value)} GPU hours`;
  return (
    <tr>
      <td class="name">
        {queue.name}
        <div class="muted small">{queue.namespaces.join(", ")}</div>
      </td>
      <td>
        {budget.period}
        {budget.hard && <div class="muted small">hard limit</div>}
      </td>
      <td class="right">{amount(budget.used)}</td>
      <td class="right">{amount(budget.total)}</td>
      <td class="meter-cell">
        <Meter rate={budget.percent / 100} label={`budget of ${queue.name} used`} />
      </td>
      <td>
        <UsedUp {...props} />
      </td>
    </tr>
  );
}

function UsedUp(props: { queue: Queue; forecast: Forecast | undefined; report: Report }) {
  const { zone } = useSession();
  const { budget } = props.queue;
  if (budget && budget.used >= budget.total) return <strong class="failed-words">now</strong>;
  const price = priceOf(props.report, props.queue.namespaces);
  const found = props.forecast && spendingOf(props.queue, props.forecast, price);
  if (!found) return <>{NONE}</>;
  const renewed = budget?.renewedAt ? Date.parse(budget.renewedAt) : Infinity;
  if (found.at !== null && found.at < renewed) return <>{weekday(found.at, zone)}, expected</>;
  if (renewed <= found.until) return <span class="muted">not before its renewal</span>;
  return <span class="muted">not before {weekday(found.until, zone)}</span>;
}
