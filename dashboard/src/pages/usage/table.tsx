// The rows of the report: groups that open their workloads, workloads that open their runs, and the total.
import { useMemo } from "preact/hooks";
import type { Report, ReportRow } from "../../api/types";
import { t } from "../../i18n/text";
import { link, setQuery } from "../../state/route";
import { sorted, type Sort } from "../../state/sort";
import { Pager } from "../../ui/components";
import { decimal, percent, shortUid, withUnit } from "../../ui/format";
import { SortHead } from "../../ui/sort";
import { GROUPS, rowName, runsOf, workloadKey } from "./query";
import { Table } from "../../ui/table";

const SIZE = 20;

const VALUES: Record<string, (row: ReportRow) => string | number | null> = {
  name: (row) => row.name,
  hours: (row) => row.gpu_hours,
  utilization: (row) => row.avg_utilization,
  idle: (row) => row.idle_gpu_hours,
  energy: (row) => row.energy_kwh,
  cost: (row) => row.cost,
};

export function UsageTable(props: {
  report: Report;
  rows: ReportRow[];
  /** Rows of the period before, for the change of each group. */
  before: Report | undefined;
  heading: string;
  /** The first line of each printed page, because browsers repeat the heading of a table. */
  caption: string;
  sort: Sort;
  page: number;
  /** Open the workloads of a group, or the runs of a workload. */
  open: (row: ReportRow) => (() => void) | undefined;
}) {
  const { report, sort } = props;
  const { totals } = report;
  const priced = totals.cost > 0;
  const metered = totals.energy_kwh !== null;
  const earlier = useMemo(
    () => new Map(props.before?.rows.map((row) => [keyOf(row), row])),
    [props.before],
  );
  const rows = useMemo(
    () => [
      ...sorted(
        props.rows.filter((row) => row.row === "group"),
        sort,
        VALUES,
      ),
      ...props.rows.filter((row) => row.row !== "group"),
    ],
    [props.rows, sort.field, sort.down],
  );
  const page = Math.max(1, Math.min(props.page || 1, Math.ceil(rows.length / SIZE))); // another period may have fewer rows
  const head = { sort, otherwise: "-hours", right: true, down: true };
  return (
    <>
      <Table label={t("GPU hours")}>
        <thead>
          <tr class="print-only" aria-hidden="true">
            <th class="caption" colSpan={99}>
              {props.caption}
            </th>
          </tr>
          <tr>
            <SortHead field="name" words={capital(props.heading)} sort={sort} otherwise="-hours" />
            <SortHead field="hours" words={t("GPU hours")} {...head} />
            {props.before && <th class="right">{t("Change")}</th>}
            <th class="right">{t("Share of capacity")}</th>
            <SortHead field="utilization" words={t("Utilization")} {...head} />
            <SortHead field="idle" words={t("Idle GPU hours")} {...head} />
            {metered && <SortHead field="energy" words={t("Energy (kWh)")} {...head} />}
            {priced && (
              <SortHead field="cost" words={withUnit(t("Cost"), report.currency)} {...head} />
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, place) => (
            <tr
              key={`${row.row} ${row.namespace} ${row.kind} ${row.name} ${row.uid}`}
              class={Math.floor(place / SIZE) === page - 1 ? "" : "print-only"}
            >
              <td class="name">
                <RowName row={row} open={props.open(row)} />
              </td>
              <td class="right">{decimal(row.gpu_hours, 2)}</td>
              {props.before && (
                <td class="right soft">{changeOf(row, earlier.get(keyOf(row)), props)}</td>
              )}
              <td class="right soft">{percent(row.share / 100, 1)}</td>
              <td class="right">{percent(rate(row.avg_utilization), 1)}</td>
              <td class="right soft">{decimal(row.idle_gpu_hours, 2)}</td>
              {metered && <td class="right">{decimal(row.energy_kwh, 2)}</td>}
              {priced && <td class="right">{decimal(row.cost, 2)}</td>}
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr class="total">
            <td>{t("Total")}</td>
            <td class="right">{decimal(totals.allocated_gpu_hours, 2)}</td>
            {props.before && <td />}
            <td class="right">{percent(totals.allocation_rate / 100, 1)}</td>
            <td class="right">{percent(rate(totals.avg_utilization), 1)}</td>
            <td class="right">{decimal(totals.idle_gpu_hours, 2)}</td>
            {metered && <td class="right">{decimal(totals.energy_kwh, 2)}</td>}
            {priced && <td class="right">{decimal(totals.cost, 2)}</td>}
          </tr>
        </tfoot>
      </Table>
      {rows.length > SIZE && (
        <Pager
          page={page}
          size={SIZE}
          total={rows.length}
          onChange={(number) => setQuery({ page: number > 1 ? String(number) : undefined })}
        />
      )}
    </>
  );
}

function keyOf(row: ReportRow): string {
  return `${row.row} ${row.namespace} ${workloadKey(row)}`;
}

/** Return the change of the GPU hours per observed hour. */
function changeOf(
  row: ReportRow,
  earlier: ReportRow | undefined,
  of: { report: Report; before: Report | undefined },
): string {
  const [hours, hoursBefore] = [of.report.hours_accounted, of.before?.hours_accounted ?? 0];
  if (row.row !== "group" || !hours || !hoursBefore) return "";
  if (!earlier?.gpu_hours) return t("new");
  const change = row.gpu_hours / hours / (earlier.gpu_hours / hoursBefore) - 1;
  return `${change < 0 ? "−" : "+"}${percent(Math.abs(change), 1)}`;
}

function RowName(props: { row: ReportRow; open: (() => void) | undefined }) {
  const { row, open } = props;
  if (row.row === "unattributed") return <span class="muted">{t("unattributed")}</span>;
  if (row.row === "others")
    return <span class="muted">{t("{n} others", { n: parseInt(row.name) })}</span>;
  const name = rowName(row);
  const opened = open ? (
    <button class="linkish name-link" onClick={open}>
      {name}
    </button>
  ) : row.uid ? (
    <a href={link(["workloads", row.uid], { span: "run" })}>{name}</a>
  ) : (
    <span class={row.name ? "" : "muted"}>{name}</span>
  );
  if (!row.kind) return opened;
  return (
    <>
      {opened}
      <div class="muted small">
        {row.namespace} · {row.kind}
        {runsOf(row) > 1
          ? ` · ${t("{n} runs", { n: runsOf(row) })}`
          : row.uid
            ? ` · ${shortUid(row.uid)}`
            : ""}
      </div>
    </>
  );
}

function rate(percents: number | null): number | null {
  return percents === null ? null : percents / 100;
}

function capital(words: string): string {
  return words === "run" ? t("Run") : (GROUPS.find(([name]) => name === words)?.[1] ?? words);
}
