// Node list, filtered by state and name.
import type { NodePage, NodeRow, WorkloadMetadata } from "../api/types";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { parseSort, type Sort } from "../state/sort";
import { count, shortModel } from "../ui/format";
import {
  Badge,
  Card,
  Choice,
  Empty,
  Meter,
  PageHead,
  Pager,
  Search,
  Select,
  Loaded,
  rowLink,
} from "../ui/components";
import { SortHead } from "../ui/sort";

const SIZE = 25;
const STATES = [
  ["", "All"],
  ["busy", "Full"],
  ["partial", "Partly free"],
  ["idle", "Free"],
  ["faulty", "Faulty"],
  ["unknown", "Unknown"],
] as const;
export const STATE_WORDS: Record<string, string> = {
  busy: "full",
  partial: "partly free",
  idle: "free",
  faulty: "faulty",
  unknown: "allocation unknown",
};

export const STATE_TONES: Record<string, "good" | "info" | "idle" | "bad"> = {
  busy: "info",
  partial: "good",
  idle: "idle",
  faulty: "bad",
};

export function NodesPage(props: { query: Record<string, string> }) {
  const { state = "", name = "", model = "", page = "1", cluster } = props.query;
  const sort = parseSort(props.query["sort"], "name");
  const nodes = useResource<NodePage>(
    "api/nodes",
    { cluster, state, name, model, ...orderOf(sort), pageNum: Number(page), pageSize: SIZE },
    { every: 15_000, on: ["node", "gpu"], keep: true },
  );
  const meta = useResource<WorkloadMetadata>(
    "api/workloadMetadata",
    { cluster },
    { every: 60_000 },
  );
  return (
    <>
      <PageHead
        title="Nodes"
        sub={
          nodes.data
            ? `${count(nodes.data.total)} ${state || name || model ? "match" : "with GPUs"}`
            : " "
        }
      />
      <div class="filters">
        <Search
          label="Find a node"
          value={name}
          onChange={(text) => setQuery({ name: text || undefined, page: undefined })}
        />
        <Choice
          label="State"
          value={state as (typeof STATES)[number][0]}
          options={STATES}
          onChange={(chosen) => setQuery({ state: chosen || undefined, page: undefined })}
        />
        <Select
          label="Model"
          value={model}
          any="All models"
          options={meta.data?.models ?? []}
          onChange={(chosen) => setQuery({ model: chosen || undefined, page: undefined })}
        />
      </div>
      <Card flush>
        <Loaded of={nodes} lines={10}>
          {(rows) => (
            <>
              {rows.data.length ? (
                <NodeTable rows={rows.data} sort={sort} />
              ) : (
                <Empty title={rows.total ? "No nodes on this page" : "No node matches"}>
                  {rows.total
                    ? "Go to an earlier page."
                    : "Clear the search or choose another state or model."}
                </Empty>
              )}
              <Pager
                page={Number(page)}
                size={SIZE}
                total={rows.total}
                onChange={(number) => setQuery({ page: String(number) }, true)}
              />
            </>
          )}
        </Loaded>
      </Card>
    </>
  );
}

/** Return the sort parameters of the API: most free and busiest first unless reversed. */
function orderOf(sort: Sort): { sort?: string; reverse?: string } {
  const upwards = sort.field === "name" || sort.field === "state";
  if (!["name", "state", "free", "utilization"].includes(sort.field)) return {};
  return {
    ...(sort.field === "name" ? {} : { sort: sort.field }),
    ...(upwards === sort.down ? { reverse: "true" } : {}),
  };
}

function NodeTable(props: { rows: NodeRow[]; sort: Sort }) {
  const head = { sort: props.sort, otherwise: "name" };
  const problems = props.rows.some((node) => node.fault);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Nodes">
      <table>
        <thead>
          <tr>
            <SortHead field="name" words="Node" {...head} />
            <SortHead field="state" words="State" {...head} />
            <SortHead field="free" words="GPUs" down {...head} />
            <th>Model</th>
            <SortHead field="utilization" words="Utilization" down right {...head} />
            {problems && <th>Problem</th>}
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
              </td>
              <td>
                {node.gpuAllocated == null ? (
                  count(node.gpuTotal)
                ) : (
                  <GpuSquares total={node.gpuTotal} held={node.gpuAllocated} />
                )}
              </td>
              <td class="soft">{shortModel(node.gpuModel)}</td>
              <td class="right">
                <Meter rate={node.utilization} />
              </td>
              {problems && <td class="muted words">{node.fault}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** One square per GPU, filled if allocated. */
export function GpuSquares(props: { total: number; held: number }) {
  if (props.total > 16) return <span>{`${props.held} / ${props.total}`}</span>;
  return (
    <span class="pips" role="img" aria-label={`${props.held} of ${props.total} GPUs allocated`}>
      {Array.from({ length: props.total }, (_, place) => (
        <span key={place} class={place < props.held ? "on" : ""} />
      ))}
      <span class="num muted">
        {props.held}/{props.total}
      </span>
    </span>
  );
}
