// Workload list: filters in the URL, paged, newest first; or a time line by team.
import { useEffect, useState } from "preact/hooks";
import type { WorkloadMetadata, WorkloadPage, WorkloadRow } from "../api/types";
import { stateText } from "../i18n/states";
import { plural, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link, pageOf, setQuery } from "../state/route";
import { parseSort, type Sort } from "../state/sort";
import { NONE, count, modelWords, shortUid, span } from "../ui/format";
import {
  Badge,
  Card,
  Choice,
  Empty,
  PageHead,
  Pager,
  Search,
  Loaded,
  When,
  rowLink,
  useNow,
} from "../ui/components";
import { ClearFilters, FilterFields, Mine, setFilter } from "../ui/filters";
import { SortHead } from "../ui/sort";
import { PageSize, Table, sizeOf } from "../ui/table";
import { gpusOf, isWaiting, modelsOf, reasonOf } from "./request";
import { TeamTimeline } from "./team_timeline";

const NEWEST = "-start";
const STATUSES = ["Running", "Pending", "Completed", "Failed", "Unknown"];
const STATUS_WORDS = Object.fromEntries(STATUSES.map((each) => [each, stateText(each)]));
const FILTERS = ["name", "namespace", "kind", "status", "source", "model", "team", "user"];
const VIEWS = [
  ["", t("List")],
  ["timeline", t("Time line")],
] as const;

export function WorkloadsPage(props: { query: Record<string, string> }) {
  const { query } = props;
  const timeline = query["view"] === "timeline";
  const meta = useResource<WorkloadMetadata>(
    "api/workloadMetadata",
    { cluster: query["cluster"] },
    { every: 60_000 },
  );
  const [total, setTotal] = useState<number | null>(null);
  const filtered = FILTERS.some((field) => query[field]);
  return (
    <>
      <PageHead
        title={t("Workloads")}
        sub={
          timeline
            ? t("GPUs that teams held over time")
            : total === null
              ? " "
              : filtered
                ? t("{n} match", { n: total })
                : plural(total, "{n} workload", "{n} workloads")
        }
      >
        <Choice
          label={t("View")}
          value={timeline ? "timeline" : ""}
          options={VIEWS}
          onChange={(view) => setQuery({ view: view || undefined, page: undefined }, true)}
        />
      </PageHead>
      {timeline ? (
        <TeamTimeline query={query} meta={meta.data} />
      ) : (
        <List query={query} meta={meta.data} filtered={filtered} onTotal={setTotal} />
      )}
    </>
  );
}

function List(props: {
  query: Record<string, string>;
  meta: WorkloadMetadata | undefined;
  filtered: boolean;
  onTotal: (total: number) => void;
}) {
  const { query, meta, filtered } = props;
  const { cluster, page = "1" } = query;
  const sort = parseSort(query["sort"], NEWEST);
  const size = sizeOf(query);
  const [picked, setPicked] = useState<readonly string[]>([]);
  const chosen = Object.fromEntries(FILTERS.map((field) => [field, query[field]]));
  const rows = useResource<WorkloadPage>(
    "api/workloads",
    { cluster, ...chosen, ...orderOf(sort), pageNum: pageOf(page), pageSize: size },
    { every: 15_000, on: ["workload"], keep: true },
  );
  const total = rows.data?.total;
  useEffect(() => {
    if (total !== undefined) props.onTotal(total);
  }, [total]);
  return (
    <>
      <div class="filters">
        <Search
          label={t("Find a workload")}
          value={query["name"] ?? ""}
          onChange={(text) => setFilter("name", text)}
        />
        <FilterFields
          query={query}
          fields={[
            {
              name: "namespace",
              label: t("Namespace"),
              any: t("All namespaces"),
              options: meta?.namespaces ?? [],
            },
            { name: "team", label: t("Team"), any: t("All teams"), options: meta?.teams ?? [] },
            { name: "user", label: t("User"), any: t("All users"), options: meta?.users ?? [] },
            { name: "kind", label: t("Kind"), any: t("All kinds"), options: meta?.kinds ?? [] },
            {
              name: "status",
              label: t("Status"),
              any: t("Any status"),
              options: STATUSES,
              words: STATUS_WORDS,
            },
            {
              name: "source",
              label: t("Source"),
              any: t("All sources"),
              options: ["k8s", "slurm", "docker", "local"],
            },
            {
              name: "model",
              label: t("Model"),
              any: t("All models"),
              options: meta?.models ?? [],
              words: modelWords(meta?.models ?? []),
            },
          ]}
        />
        <Mine user={query["user"] ?? ""} />
        <ClearFilters query={query} names={FILTERS} />
        {picked.length > 0 && (
          <a
            class="button primary"
            href={link(["compare"], { runs: picked.join(",") })}
            aria-disabled={picked.length < 2}
          >
            {plural(picked.length, "Compare {n} run", "Compare {n} runs")}
          </a>
        )}
      </div>
      <Card flush>
        <Loaded of={rows} lines={10}>
          {(data) => (
            <>
              {data.data.length ? (
                <WorkloadTable
                  rows={data.data}
                  sort={sort}
                  picked={picked}
                  onPick={(uid) =>
                    setPicked((old) =>
                      old.includes(uid) ? old.filter((each) => each !== uid) : [...old, uid],
                    )
                  }
                />
              ) : (
                <Empty
                  title={
                    data.total
                      ? t("No workloads on this page")
                      : filtered
                        ? t("No workload matches")
                        : t("No workloads yet")
                  }
                >
                  {data.total
                    ? t("Go to an earlier page.")
                    : filtered
                      ? t("Clear a filter to see more.")
                      : t("Workloads that request a GPU appear here.")}
                </Empty>
              )}
              <Pager
                page={pageOf(page)}
                size={size}
                total={data.total}
                onChange={(number) => setQuery({ page: String(number) }, true)}
              >
                <PageSize size={size} />
              </Pager>
            </>
          )}
        </Loaded>
      </Card>
    </>
  );
}

function WorkloadTable(props: {
  rows: WorkloadRow[];
  sort: Sort;
  picked: readonly string[];
  onPick: (uid: string) => void;
}) {
  const head = { sort: props.sort, otherwise: NEWEST };
  const now = useNow(15_000) / 1000;
  const ended = props.rows.some((row) => row.endAt) || props.sort.field === "end";
  const sources = props.rows.some((row) => row.source !== "k8s");
  return (
    <Table label={t("Workloads")}>
      <thead>
        <tr>
          <SortHead field="name" words={t("Workload")} {...head} />
          <SortHead field="status" words={t("Status")} {...head} />
          <SortHead field="gpus" words={t("GPUs")} down right {...head} />
          <SortHead field="model" words={t("Model")} {...head} />
          <SortHead field="kind" words={t("Kind")} {...head} />
          <SortHead field="team" words={t("Team")} {...head} />
          <SortHead field="user" words={t("User")} {...head} />
          <SortHead field="start" words={t("Started")} down {...head} />
          {ended && <SortHead field="end" words={t("Ended")} down {...head} />}
          <SortHead field="duration" words={t("Duration")} down right {...head} />
        </tr>
      </thead>
      <tbody>
        {props.rows.map((row) => (
          <tr key={row.uid} {...rowLink(link(["workloads", row.uid]))}>
            <td class="name">
              <div class="picked">
                <label class="pick" title={t("Compare")}>
                  <input
                    type="checkbox"
                    checked={props.picked.includes(row.uid)}
                    onChange={() => props.onPick(row.uid)}
                  />
                  <span class="sr">{t("Compare {name}", row)}</span>
                </label>
                <div class="line">
                  <a href={link(["workloads", row.uid])}>{row.name}</a>
                  <div class="muted small">
                    {row.kind === "SlurmJob"
                      ? `${row.namespace} · ${shortUid(row.uid)}`
                      : row.namespace}
                  </div>
                </div>
              </div>
            </td>
            <td>
              <Badge word={row.status} />
              {row.waitingReason && (
                <div class="muted small words clamped" title={reasonOf(row)}>
                  {reasonOf(row)}
                </div>
              )}
            </td>
            <td class="right">
              {count(gpusOf(row))}
              {isWaiting(row) && <div class="muted small">{t("requested")}</div>}
            </td>
            <td class="soft">{modelsOf(row) || NONE}</td>
            <td class="soft">
              {row.kind}
              {sources && <div class="muted small">{row.source}</div>}
            </td>
            <td class="soft">{row.team || NONE}</td>
            <td class="soft">{row.user || NONE}</td>
            <td>{row.startAt && !isWaiting(row) ? <When at={row.startAt * 1000} /> : NONE}</td>
            {ended && <td>{row.endAt ? <When at={row.endAt * 1000} /> : NONE}</td>}
            <td class="right">
              <Duration row={row} now={now} />
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Duration(props: { row: WorkloadRow; now: number }) {
  const { row, now } = props;
  if (!row.startAt) return <>{NONE}</>;
  const time = span((row.endAt || now) - row.startAt);
  if (row.status !== "Pending") return <>{time}</>;
  return <span class="wrapped">{t("waiting for {time}", { time })}</span>;
}

const SORTS = ["gpus", "name", "kind", "status", "model", "duration", "team", "user"];
/** Fields that the API sorts with the newest or largest first. */
const LARGEST_FIRST = ["start", "end", "gpus", "duration"];

/** Return the sort parameters of the API. */
function orderOf(sort: Sort): { orderBy?: string; sort?: string; reverse?: string } {
  const field = ["start", "end", ...SORTS].includes(sort.field) ? sort.field : "start";
  const reverse = LARGEST_FIRST.includes(field) !== sort.down ? { reverse: "true" } : {};
  return SORTS.includes(field)
    ? { sort: field, ...reverse }
    : { orderBy: `${field}_at`, ...reverse };
}
