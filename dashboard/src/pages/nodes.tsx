// Node list, filtered by state, name, model, source, rack, team and user.
import type { NodePage, NodeRow, WorkloadMetadata } from "../api/types";
import { plural, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link, pageOf, setQuery } from "../state/route";
import { parseSort, type Sort } from "../state/sort";
import { NONE, count, modelWords, shortModel } from "../ui/format";
import {
  Badge,
  Card,
  Choice,
  Empty,
  Meter,
  PageHead,
  Pager,
  Search,
  Loaded,
  rowLink,
} from "../ui/components";
import { ClearFilters, FilterFields, Mine, setFilter } from "../ui/filters";
import { SortHead } from "../ui/sort";
import { PageSize, Table, sizeOf } from "../ui/table";

const FILTERS = ["name", "state", "model", "source", "rack", "team", "user"];
const STATES = [
  ["", t("All")],
  ["busy", t("Full")],
  ["partial", t("Partly free")],
  ["idle", t("Free")],
  ["faulty", t("Faulty")],
  ["unknown", t("Unknown")],
] as const;
export const STATE_WORDS: Record<string, string> = {
  busy: t("full"),
  partial: t("partly free"),
  idle: t("free"),
  faulty: t("faulty"),
  unknown: t("allocation unknown"),
};

export const STATE_TONES: Record<string, "good" | "info" | "idle" | "bad"> = {
  busy: "info",
  partial: "good",
  idle: "idle",
  faulty: "bad",
};

export function NodesPage(props: { query: Record<string, string> }) {
  const { query } = props;
  const { state = "", name = "", page = "1", cluster } = query;
  const sort = parseSort(query["sort"], "name");
  const size = sizeOf(query);
  const chosen = Object.fromEntries(FILTERS.map((field) => [field, query[field]]));
  const nodes = useResource<NodePage>(
    "api/nodes",
    { cluster, ...chosen, ...orderOf(sort), pageNum: pageOf(page), pageSize: size },
    { every: 15_000, on: ["node", "gpu"], keep: true },
  );
  const meta = useResource<WorkloadMetadata>(
    "api/workloadMetadata",
    { cluster },
    { every: 60_000 },
  ).data;
  const filtered = FILTERS.some((field) => query[field]);
  return (
    <>
      <PageHead
        title={t("Nodes")}
        sub={
          !nodes.data
            ? " "
            : filtered
              ? t("{n} match", { n: nodes.data.total })
              : t("{n} with GPUs", { n: nodes.data.total })
        }
      />
      <div class="filters">
        <Search
          label={t("Find a node")}
          value={name}
          onChange={(text) => setFilter("name", text)}
        />
        <Choice
          label={t("State")}
          value={state as (typeof STATES)[number][0]}
          options={STATES}
          onChange={(value) => setFilter("state", value)}
        />
        <FilterFields
          query={query}
          fields={[
            {
              name: "model",
              label: t("Model"),
              any: t("All models"),
              options: meta?.models ?? [],
              words: modelWords(meta?.models ?? []),
            },
            {
              name: "source",
              label: t("Source"),
              any: t("All sources"),
              options: meta?.sources ?? [],
            },
            { name: "rack", label: t("Rack"), any: t("All racks"), options: meta?.racks ?? [] },
            { name: "team", label: t("Team"), any: t("All teams"), options: meta?.teams ?? [] },
            { name: "user", label: t("User"), any: t("All users"), options: meta?.users ?? [] },
          ]}
        />
        <Mine user={query["user"] ?? ""} />
        <ClearFilters query={query} names={FILTERS} />
      </div>
      <Card flush>
        <Loaded of={nodes} lines={10}>
          {(rows) => (
            <>
              {rows.data.length ? (
                <NodeTable rows={rows.data} sort={sort} sources={meta?.sources.length ?? 1} />
              ) : (
                <Empty title={rows.total ? t("No nodes on this page") : t("No node matches")}>
                  {rows.total
                    ? t("Go to an earlier page.")
                    : t("Clear the search or choose another state or model.")}
                </Empty>
              )}
              <Pager
                page={pageOf(page)}
                size={size}
                total={rows.total}
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

const SORTS = ["name", "state", "free", "utilization", "model", "source", "rack"];
/** Fields that the API sorts with the largest first. */
const LARGEST_FIRST = ["free", "utilization"];

/** Return the sort parameters of the API. */
function orderOf(sort: Sort): { sort?: string; reverse?: string } {
  if (!SORTS.includes(sort.field)) return {};
  const reverse = LARGEST_FIRST.includes(sort.field) !== sort.down;
  return {
    ...(sort.field === "name" ? {} : { sort: sort.field }),
    ...(reverse ? { reverse: "true" } : {}),
  };
}

function NodeTable(props: { rows: NodeRow[]; sort: Sort; sources: number }) {
  const head = { sort: props.sort, otherwise: "name" };
  const racks = props.rows.some((node) => node.rack) || props.sort.field === "rack";
  const sources = props.sources > 1;
  return (
    <Table label={t("Nodes")}>
      <thead>
        <tr>
          <SortHead field="name" words={t("Node")} {...head} />
          <SortHead field="state" words={t("State")} {...head} />
          <SortHead field="free" words={t("GPUs")} down {...head} />
          <SortHead field="model" words={t("Model")} {...head} />
          {racks && <SortHead field="rack" words={t("Rack")} {...head} />}
          {sources && <SortHead field="source" words={t("Source")} {...head} />}
          <SortHead field="utilization" words={t("Utilization")} down right {...head} />
        </tr>
      </thead>
      <tbody>
        {props.rows.map((node) => (
          <tr key={node.name} {...rowLink(link(["nodes", node.name]))}>
            <td class="name">
              <a href={link(["nodes", node.name])}>{node.name}</a>
            </td>
            <td>
              <Badge
                word={STATE_WORDS[node.state] ?? node.state}
                tone={STATE_TONES[node.state] ?? "idle"}
              />{" "}
              {node.cordoned && <Badge word="cordoned" />}
              {node.fault && <div class="muted small problem">{node.fault}</div>}
            </td>
            <td>
              {node.gpuAllocated == null ? (
                count(node.gpuTotal)
              ) : (
                <GpuSquares total={node.gpuTotal} held={node.gpuAllocated} />
              )}
            </td>
            <td class="soft">{shortModel(node.gpuModel)}</td>
            {racks && <td class="soft">{node.rack || NONE}</td>}
            {sources && <td class="soft">{node.source}</td>}
            <td class="right">
              <Meter rate={node.utilization} />
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

export function allocatedText(held: number, total: number): string {
  return plural(total, "{held} of {n} GPU allocated", "{held} of {n} GPUs allocated", { held });
}

/** One square per GPU, filled if allocated. */
export function GpuSquares(props: { total: number; held: number }) {
  if (props.total > 16) return <span>{`${props.held} / ${props.total}`}</span>;
  return (
    <span class="pips" role="img" aria-label={allocatedText(props.held, props.total)}>
      {Array.from({ length: props.total }, (_, place) => (
        <span key={place} class={place < props.held ? "on" : ""} />
      ))}
      <span class="num muted">
        {props.held}/{props.total}
      </span>
    </span>
  );
}
