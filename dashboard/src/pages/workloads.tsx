// Workload list: filters in the URL, paged, newest first.
import type { WorkloadMetadata, WorkloadPage, WorkloadRow } from "../api/types";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { parseSort, type Sort } from "../state/sort";
import { NONE, count, span } from "../ui/format";
import {
  Badge,
  Card,
  Empty,
  PageHead,
  Pager,
  Search,
  Select,
  Loaded,
  When,
  rowLink,
  useNow,
} from "../ui/components";
import { SortHead } from "../ui/sort";
import { gpusOf, isWaiting, modelsOf } from "./request";

const SIZE = 25;
const NEWEST = "-start";
const STATUSES = ["Running", "Pending", "Completed", "Failed", "Unknown"];
const SOURCES = ["k8s", "slurm", "docker", "local"];
const FILTERS = ["name", "namespace", "kind", "status", "source", "model"];

export function WorkloadsPage(props: { query: Record<string, string> }) {
  const {
    cluster,
    name = "",
    namespace = "",
    kind = "",
    status = "",
    source = "",
    model = "",
    page = "1",
  } = props.query;
  const sort = parseSort(props.query["sort"], NEWEST);
  const meta = useResource<WorkloadMetadata>(
    "api/workloadMetadata",
    { cluster },
    { every: 60_000 },
  );
  const rows = useResource<WorkloadPage>(
    "api/workloads",
    {
      cluster,
      name,
      namespace,
      kind,
      status,
      source,
      model,
      ...orderOf(sort),
      pageNum: Number(page),
      pageSize: SIZE,
    },
    { every: 15_000, on: ["workload"], keep: true },
  );
  const filter = (field: string) => (value: string) =>
    setQuery({ [field]: value || undefined, page: undefined });
  const filtered = FILTERS.some((field) => props.query[field]);
  return (
    <>
      <PageHead
        title="Workloads"
        sub={
          rows.data
            ? `${count(rows.data.total)} ${filtered ? "match" : "that request or requested GPUs"}`
            : " "
        }
      />
      <div class="filters">
        <Search label="Find a workload" value={name} onChange={filter("name")} />
        <Select
          label="Namespace"
          value={namespace}
          any="All namespaces"
          options={meta.data?.namespaces ?? []}
          onChange={filter("namespace")}
        />
        <Select
          label="Kind"
          value={kind}
          any="All kinds"
          options={meta.data?.kinds ?? []}
          onChange={filter("kind")}
        />
        <Select
          label="Status"
          value={status}
          any="Any status"
          options={STATUSES}
          onChange={filter("status")}
        />
        <Select
          label="Source"
          value={source}
          any="All sources"
          options={SOURCES}
          onChange={filter("source")}
        />
        <Select
          label="Model"
          value={model}
          any="All models"
          options={meta.data?.models ?? []}
          onChange={filter("model")}
        />
        {filtered && (
          <button
            class="button ghost"
            onClick={() =>
              setQuery(Object.fromEntries([...FILTERS, "page"].map((field) => [field, undefined])))
            }
          >
            Clear
          </button>
        )}
      </div>
      <Card flush>
        <Loaded of={rows} lines={10}>
          {(data) => (
            <>
              {data.data.length ? (
                <Table rows={data.data} sort={sort} />
              ) : (
                <Empty
                  title={
                    data.total
                      ? "No workloads on this page"
                      : filtered
                        ? "No workload matches"
                        : "No workloads yet"
                  }
                >
                  {data.total
                    ? "Go to an earlier page."
                    : filtered
                      ? "Clear a filter to see more."
                      : "Workloads that request a GPU appear here."}
                </Empty>
              )}
              <Pager
                page={Number(page)}
                size={SIZE}
                total={data.total}
                onChange={(number) => setQuery({ page: String(number) }, true)}
              />
            </>
          )}
        </Loaded>
      </Card>
    </>
  );
}

function Table(props: { rows: WorkloadRow[]; sort: Sort }) {
  const head = { sort: props.sort, otherwise: NEWEST };
  const now = useNow(15_000) / 1000;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Workloads">
      <table>
        <thead>
          <tr>
            <SortHead field="name" words="Workload" {...head} />
            <th>Status</th>
            <SortHead field="gpus" words="GPUs" down right {...head} />
            <th>Model</th>
            <th>Kind</th>
            <SortHead field="start" words="Started" down {...head} />
            <SortHead field="end" words="Ended" down {...head} />
            <th class="right">Duration</th>
            <th>Source</th>
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={row.uid} {...rowLink(link(["workloads", row.uid]))}>
              <td class="name">
                <a href={link(["workloads", row.uid])}>{row.name}</a>
                <div class="muted small">{row.namespace}</div>
              </td>
              <td>
                <Badge word={row.status} />
                {row.waitingReason && <div class="muted small words">{row.waitingReason}</div>}
              </td>
              <td class="right">
                {count(gpusOf(row))}
                {isWaiting(row) && <div class="muted small">requested</div>}
              </td>
              <td class="soft">{modelsOf(row) || NONE}</td>
              <td class="soft">{row.kind}</td>
              <td>{row.startAt ? <When at={row.startAt * 1000} /> : NONE}</td>
              <td>{row.endAt ? <When at={row.endAt * 1000} /> : NONE}</td>
              <td class="right">
                {row.status === "Pending" && <span class="muted">waiting for </span>}
                {row.startAt ? span((row.endAt || now) - row.startAt) : NONE}
              </td>
              <td class="muted">{row.source}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Return the sort parameters of the API: newest and largest first unless reversed. */
function orderOf(sort: Sort): { orderBy?: string; sort?: string; reverse?: string } {
  const field = ["start", "end", "gpus", "name"].includes(sort.field) ? sort.field : "start";
  const reverse = (field === "name") === sort.down ? { reverse: "true" } : {};
  return field === "start" || field === "end"
    ? { orderBy: `${field}_at`, ...reverse }
    : { sort: field, ...reverse };
}
