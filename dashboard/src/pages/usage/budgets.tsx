// The budgets of GpuQueues: what is used, and when the rest will be.
import type { Forecast, QueueList, Report } from "../../api/types";
import { periodText } from "../../i18n/states";
import { t } from "../../i18n/text";
import { useSession } from "../../state/session";
import { Card, Meter } from "../../ui/components";
import { NONE, count, list, money, weekday } from "../../ui/format";
import { isUsedUp, namespacesOf, priceOf, spendingOf } from "./budget";
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
      <Card title={t("Budgets")} note={t("of GpuQueues, in their current period")} flush>
        <Table label={t("Budgets")}>
          <thead>
            <tr>
              <th>{t("Queue")}</th>
              <th>{t("Period")}</th>
              <th class="right">{t("Used")}</th>
              <th class="right">{t("Budget")}</th>
              <th class="meter-cell">{t("Share")}</th>
              <th>{t("Used up")}</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((queue) => (
              <BudgetRow
                key={queue.name}
                queue={queue}
                namespaces={namespacesOf(queue, props.queues)}
                {...props}
              />
            ))}
          </tbody>
        </Table>
      </Card>
    </div>
  );
}

interface RowProps {
  queue: Queue;
  /** Those whose use counts. */
  namespaces: readonly string[];
  forecast: Forecast | undefined;
  report: Report;
}

function BudgetRow(props: RowProps) {
  const { queue } = props;
  const { budget } = queue;
  if (!budget) return null;
  const amount = (value: number) =>
    budget.unit === "cost"
      ? money(value, props.report.currency)
      : t("{hours} GPU hours", { hours: count(value) });
  return (
    <tr>
      <td class="name">
        {queue.name}
        <div class="muted small">{list(props.namespaces)}</div>
      </td>
      <td>
        {periodText(budget.period)}
        {budget.hard && <div class="muted small">{t("hard limit")}</div>}
      </td>
      <td class="right">{amount(budget.used)}</td>
      <td class="right">{amount(budget.total)}</td>
      <td class="meter-cell">
        <Meter
          rate={budget.percent / 100}
          label={t("budget of {queue} used", { queue: queue.name })}
        />
      </td>
      <td>
        <UsedUp {...props} />
      </td>
    </tr>
  );
}

function UsedUp(props: RowProps) {
  const { zone } = useSession();
  const { budget } = props.queue;
  if (isUsedUp(props.queue)) return <strong class="failed-words">{t("now")}</strong>;
  const price = priceOf(props.report, props.namespaces);
  const found = props.forecast && spendingOf(budget, props.namespaces, props.forecast, price);
  if (!found) return <>{NONE}</>;
  const renewed = budget?.renewedAt ? Date.parse(budget.renewedAt) : Infinity;
  if (found.at !== null && found.at < renewed)
    return <>{t("{day}, expected", { day: weekday(found.at, zone) })}</>;
  if (renewed <= found.until) return <span class="muted">{t("not before its renewal")}</span>;
  const day = weekday(found.until, zone);
  return <span class="muted">{t("not before {day}", { day })}</span>;
}
