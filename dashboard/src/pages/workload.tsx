// Workload page: GPU metrics, training metrics, hierarchy, pods.
import { useMemo } from "preact/hooks";
import type { Graph, HierarchyItem, TrainingRow, WorkloadDetail } from "../api/types";
import { Lines } from "../charts/lines";
import { kindText } from "../i18n/states";
import { plural, rich, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { rangeName, useRange, zoomTo, type Range, type Run, type Span } from "../state/range";
import { link } from "../state/route";
import { NONE, count, percent, span } from "../ui/format";
import { Icon } from "../ui/icons";
import { Badge, Card, Empty, KeyValues, PageHead, Loaded, When, useNow } from "../ui/components";
import { FollowButton } from "../ui/bell";
import { RangeChoice } from "../ui/range";
import { Table } from "../ui/table";
import { useTitle } from "../ui/title";
import { Expected } from "../ui/estimate";
import { ClaimOf } from "./claim";
import { durationLabel, gpusOf, isWaiting, modelsOf, reasonOf } from "./request";
import { Graphs } from "./graphs";
import { LOOSE, STEP, TITLES, formatOf, placeOf } from "./training";
import { expectedOf } from "./waiting";
import { WorkloadObjects } from "./workload_objects";

export function WorkloadPage(props: { uid: string; query: Record<string, string> }) {
  const workload = useResource<WorkloadDetail>(
    `api/workloads/${encodeURIComponent(props.uid)}`,
    { cluster: props.query["cluster"] },
    { every: 10_000, on: ["workload"] },
  );
  return (
    <>
      <a class="crumb" href={link(["workloads"])}>
        <Icon name="left" /> {t("Workloads")}
      </a>
      {workload.error?.missing ? (
        <Missing />
      ) : (
        <Loaded of={workload} lines={8}>
          {(data) => <Detail workload={data} query={props.query} />}
        </Loaded>
      )}
    </>
  );
}

function Missing() {
  useTitle(t("No such workload in this cluster"));
  return (
    <>
      <PageHead title={t("No such workload in this cluster")} />
      <p class="soft">
        {t("The GPU hours of a deleted workload are on the usage page.")}{" "}
        <a class="accent" href={link(["usage"], { by: "workload" })}>
          {t("Usage")}
        </a>
      </p>
    </>
  );
}

function Detail(props: { workload: WorkloadDetail; query: Record<string, string> }) {
  const { workload, query } = props;
  useTitle(workload.name);
  const waiting = workload.status === "Pending";
  const claim = workload.claims?.[0];
  // A workload may run with some of its pods while others wait.
  const stuck = workload.pods.find((pod) => pod.status === "Pending" && !pod.nodeName && pod.claim);
  const waits = stuck?.claim ?? (waiting ? claim : undefined);
  const shown = { workload, cluster: query["cluster"] };
  return (
    <>
      <PageHead
        title={
          <span class="title-row">
            {workload.name} <Badge word={workload.status} />
          </span>
        }
        sub={[
          kindText(workload),
          workload.team &&
            workload.team !== workload.namespace &&
            t("team {team}", { team: workload.team }),
          workload.user,
          workload.source,
        ]
          .filter(Boolean)
          .join(" · ")}
      >
        <a class="button" href={link(["compare"], { runs: workload.uid })}>
          {t("Compare")}
        </a>
        <FollowButton uid={workload.uid} name={workload.name} />
      </PageHead>
      {waits !== undefined && (
        <ClaimOf
          {...shown}
          title={waiting ? t("Why it waits") : t("Why a pod waits")}
          claim={waits}
        />
      )}
      {workload.waitingReason && !(waiting && workload.claims?.length) && (
        <div class="grid">
          <Card title={t("Why it waits")}>
            <p class="words">{reasonOf(workload)}</p>
            <Expected at={expectedOf(workload)} />
          </Card>
        </div>
      )}
      <Summary workload={workload} query={query} />
      <GpuGraphs workload={workload} query={query} />
      <Training workload={workload} query={query} />
      {waits === undefined && claim !== undefined && !workload.endTime && (
        <ClaimOf {...shown} title={t("Claim")} claim={claim} />
      )}
      <div class="grid two">
        <Tree workload={workload} query={query} />
        <Pods workload={workload} />
      </div>
      {workload.source === "k8s" && (
        <div class="grid">
          <WorkloadObjects workload={workload} query={query} />
        </div>
      )}
      <div class="grid two">
        <Card title={t("Labels")}>
          <KeyValues of={workload.labels} />
        </Card>
        <Card title={t("Annotations")}>
          <KeyValues of={workload.annotations} />
        </Card>
      </div>
    </>
  );
}

interface GpuRow {
  utilization: number | null;
}

function Summary(props: { workload: WorkloadDetail; query: Record<string, string> }) {
  const { workload } = props;
  const now = useNow(10_000) / 1000;
  const running = workload.status === "Running";
  const gpus = useResource<GpuRow[]>(
    running ? "api/v1/gpu/metrics" : null,
    { cluster: props.query["cluster"], workload: workload.uid },
    { every: 15_000 },
  );
  const read = (gpus.data ?? [])
    .map((gpu) => gpu.utilization)
    .filter((value): value is number => value !== null);
  const mean = read.length ? read.reduce((sum, value) => sum + value, 0) / read.length / 100 : null;
  const idle = read.filter((value) => value < 5).length;
  const waiting = isWaiting(workload);
  return (
    <div class="grid stats">
      <Stat
        label={
          waiting ? t("Requested GPUs") : running ? t("Allocated GPUs") : t("Last allocated GPUs")
        }
        value={count(gpusOf(workload))}
        sub={[
          modelsOf(workload) || (waiting ? t("any model") : t("none")),
          waiting &&
            workload.pods.length > 1 &&
            plural(workload.pods.length, "{n} pod", "{n} pods"),
        ]
          .filter(Boolean)
          .join(" · ")}
      />
      {!waiting && !workload.endTime && (
        <>
          <Stat
            label={t("Current utilization")}
            value={percent(mean)}
            sub={read.length ? t("mean over its GPUs") : t("no readings")}
          />
          <Stat
            label={t("Idle while allocated")}
            value={read.length ? count(idle) : "–"}
            sub={
              read.length
                ? idle
                  ? t("GPUs below 5%: {share} of its GPUs", { share: percent(idle / read.length) })
                  : t("all GPUs in use")
                : t("no readings")
            }
          />
        </>
      )}
      <div class="card stat">
        <span class="stat-label">{durationLabel(workload.status, workload.endTime > 0)}</span>
        <span class="stat-value">
          {workload.startTime ? span((workload.endTime || now) - workload.startTime) : "–"}
        </span>
        <span class="stat-sub">
          {workload.startTime
            ? workload.endTime
              ? rich("until {time}", { time: <When at={workload.endTime * 1000} /> })
              : rich("since {time}", { time: <When at={workload.startTime * 1000} /> })
            : t("not started")}
        </span>
      </div>
    </div>
  );
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

function runOf(workload: WorkloadDetail): Run {
  return { start: workload.startTime, end: workload.endTime };
}

/** A waiting workload shows what it did before it was evicted, if it ran. */
function usualSpan(workload: WorkloadDetail): Span {
  return isWaiting(workload) ? "7d" : "1h";
}

function hasPoints(graph: Graph): boolean {
  return graph.series.some((series) => series.points.length > 0);
}

function GpuGraphs(props: { workload: WorkloadDetail; query: Record<string, string> }) {
  const { workload, query } = props;
  const range = useRange(query, runOf(workload), usualSpan(workload));
  const graphs = useResource<Record<string, Graph>>(
    `api/workloads/${encodeURIComponent(workload.uid)}/metrics`,
    { cluster: query["cluster"], ...range },
    { every: 60_000, same: `graphs ${rangeName(query)}` },
  );
  if (isWaiting(workload) && !Object.values(graphs.data ?? {}).some(hasPoints)) return null;
  return (
    <div class="grid">
      <Card
        title={t("GPUs over time")}
        note={t("one line for each GPU")}
        aside={
          <RangeChoice
            query={query}
            range={range}
            run={runOf(workload)}
            usual={usualSpan(workload)}
          />
        }
      >
        <Loaded of={graphs} lines={6}>
          {(data) => <Graphs graphs={data} range={range} />}
        </Loaded>
      </Card>
    </div>
  );
}

function Training(props: { workload: WorkloadDetail; query: Record<string, string> }) {
  const { workload, query } = props;
  const range = useRange(query, runOf(workload), usualSpan(workload));
  const rows = useResource<TrainingRow[]>(
    `api/workloads/${encodeURIComponent(workload.uid)}/trainingPerformance`,
    { cluster: query["cluster"], start: range.start * 1000, end: range.end * 1000 },
    { every: 60_000, same: `training ${rangeName(query)}` },
  );
  if (isWaiting(workload) && !rows.data?.length) return null;
  return (
    <div class="grid">
      <Card title={t("Training")}>
        <Loaded of={rows} lines={4}>
          {(data) => <Curves rows={data} range={range} />}
        </Loaded>
      </Card>
    </div>
  );
}

function Curves(props: { rows: TrainingRow[]; range: Range }) {
  const curves = useMemo(() => {
    const found = new Map<string, [number, number][]>();
    for (const row of props.rows) {
      const points = found.get(row.metric) ?? [];
      points.push([row.value, row.timestamp]);
      found.set(row.metric, points);
    }
    found.delete(STEP);
    const ordered = [...found].sort(([a], [b]) => placeOf(a) - placeOf(b) || a.localeCompare(b));
    return ordered.map(([name, points]) => ({
      name,
      lines: [{ name: TITLES[name] ?? name, points }],
    }));
  }, [props.rows]);
  if (!curves.length) {
    return (
      <Empty icon="usage" title={t("No training metrics in this time range")}>
        {t(
          "Jobs report loss and throughput by pushing them, through Prometheus, or in their logs.",
        )}
      </Empty>
    );
  }
  return (
    <div class="charts">
      {curves.map((curve) => (
        <div key={curve.name}>
          <h3>{TITLES[curve.name] ?? curve.name}</h3>
          <Lines
            lines={curve.lines}
            label={TITLES[curve.name] ?? curve.name}
            height={170}
            from={props.range.start}
            to={props.range.end}
            onZoom={zoomTo}
            loose={LOOSE.has(curve.name)}
            format={formatOf(curve.name)}
          />
        </div>
      ))}
    </div>
  );
}

function Tree(props: { workload: WorkloadDetail; query: Record<string, string> }) {
  const tree = useResource<HierarchyItem>(
    `api/workloads/${encodeURIComponent(props.workload.uid)}/hierarchy`,
    { cluster: props.query["cluster"] },
    { every: 30_000, on: ["workload"] },
  );
  return (
    <Card title={t("Hierarchy")}>
      <Loaded of={tree}>
        {(root) => (
          <div class="tree">
            <ul>
              <Branch item={root} />
            </ul>
          </div>
        )}
      </Loaded>
    </Card>
  );
}

const MOST_CHILDREN = 30;

function Branch(props: { item: HierarchyItem }) {
  const { item } = props;
  return (
    <li>
      <div class="row">
        <span class="chip">{item.kind}</span>
        <span title={item.name}>{item.name}</span>
      </div>
      {item.children.length > 0 && (
        <ul>
          {item.children.slice(0, MOST_CHILDREN).map((child) => (
            <Branch key={child.uid} item={child} />
          ))}
          {item.children.length > MOST_CHILDREN && (
            <li class="muted small">
              {t("and {more} more", { more: item.children.length - MOST_CHILDREN })}
            </li>
          )}
        </ul>
      )}
    </li>
  );
}

function Pods(props: { workload: WorkloadDetail }) {
  const { pods } = props.workload;
  return (
    <Card title={t("Pods")} note={count(pods.length)} flush>
      {pods.length ? (
        <Table label={t("Pods")}>
          <thead>
            <tr>
              <th>{t("Pod")}</th>
              <th>{t("Status")}</th>
              <th>{t("Node")}</th>
            </tr>
          </thead>
          <tbody>
            {pods.slice(0, 100).map((pod) => (
              <tr key={`${pod.podNamespace}/${pod.podName}`}>
                <td class="name">{pod.podName}</td>
                <td>
                  <Badge word={pod.status} />
                </td>
                <td>
                  {pod.nodeName ? <a href={link(["nodes", pod.nodeName])}>{pod.nodeName}</a> : NONE}
                </td>
              </tr>
            ))}
          </tbody>
        </Table>
      ) : (
        <Empty title={t("No pods")} />
      )}
    </Card>
  );
}
