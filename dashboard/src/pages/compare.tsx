// Compare the training of several workloads: their curves in one chart for each metric.
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, addressOf, read } from "../api/client";
import type { TrainingRow, WorkloadDetail, WorkloadPage } from "../api/types";
import { Lines } from "../charts/lines";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import {
  Badge,
  Card,
  Choice,
  Empty,
  LoadError,
  PageHead,
  Search,
  Skeleton,
} from "../ui/components";
import { count, short, span } from "../ui/format";
import { Icon } from "../ui/icons";
import { Table } from "../ui/table";
import { gpusOf, modelsOf } from "./request";
import { LOOSE, TITLES, curvesOf, formatOf, type Along, type Run } from "./training";

const MOST_RUNS = 8;
const ALONG = [
  ["step", t("By step")],
  ["elapsed", t("By time since start")],
  ["time", t("By time of day")],
] as const;

interface Compared {
  workload: WorkloadDetail;
  rows: TrainingRow[];
}

export function ComparePage(props: { query: Record<string, string> }) {
  const { query } = props;
  const uids = (query["runs"] ?? "").split(",").filter(Boolean).slice(0, MOST_RUNS);
  const along = ALONG.find(([name]) => name === query["along"])?.[0] ?? "step";
  const { runs, error, busy } = useRuns(uids, query["cluster"]);
  const setRuns = (next: string[]) => setQuery({ runs: next.join(",") || undefined });
  return (
    <>
      <a class="crumb" href={link(["workloads"])}>
        <Icon name="left" /> {t("Workloads")}
      </a>
      <PageHead
        title={t("Compare runs")}
        sub={t("{runs} of at most {most}", { runs: uids.length, most: MOST_RUNS })}
      >
        <Choice<Along>
          label={t("Align")}
          value={along}
          options={ALONG}
          onChange={(chosen) => setQuery({ along: chosen === "step" ? undefined : chosen })}
        />
      </PageHead>
      <div class="grid">
        <Card title={t("Runs")} flush>
          {error && <LoadError error={error} />}
          {busy && <Skeleton lines={2} />}
          {runs.length > 0 && (
            <Runs runs={runs} onDrop={(uid) => setRuns(uids.filter((each) => each !== uid))} />
          )}
          {uids.length < MOST_RUNS && (
            <Add cluster={query["cluster"]} uids={uids} onAdd={(uid) => setRuns([...uids, uid])} />
          )}
        </Card>
      </div>
      {runs.length > 0 && (
        <div class="grid">
          <Card title={t("Training")}>
            <Curves runs={runs} along={along} />
          </Card>
        </div>
      )}
    </>
  );
}

/** Return the name of each run; with its namespace where two have the same. */
function namesOf(runs: readonly Compared[]): string[] {
  const names = runs.map(({ workload }) => workload.name);
  return runs.map(({ workload }, place) =>
    names.indexOf(workload.name) !== names.lastIndexOf(workload.name)
      ? `${workload.namespace}/${workload.name} ${workload.uid.slice(0, 6)}`
      : (names[place] ?? ""),
  );
}

/** Fetch the workloads and all their training numbers. */
function useRuns(uids: readonly string[], cluster: string | undefined) {
  const [state, setState] = useState<{ runs: Compared[]; error?: ApiError; busy: boolean }>({
    runs: [],
    busy: uids.length > 0,
  });
  useEffect(() => {
    const stop = new AbortController();
    setState((old) => ({ runs: old.runs, busy: uids.length > 0 }));
    Promise.all(uids.map((uid) => readRun(uid, cluster, stop.signal))).then(
      (runs) => setState({ runs, busy: false }),
      (error: unknown) =>
        stop.signal.aborted ||
        setState({
          runs: [],
          busy: false,
          error: error instanceof ApiError ? error : new ApiError(0, String(error)),
        }),
    );
    return () => stop.abort();
  }, [uids.join(), cluster]);
  return state;
}

async function readRun(
  uid: string,
  cluster: string | undefined,
  signal: AbortSignal,
): Promise<Compared> {
  const path = `api/workloads/${encodeURIComponent(uid)}`;
  const workload = await read<WorkloadDetail>(addressOf(path, { cluster }), signal);
  const start = Math.floor(workload.startTime || Date.now() / 1000 - 86_400) * 1000;
  const end = Math.ceil(workload.endTime || Date.now() / 1000) * 1000;
  const address = addressOf(`${path}/trainingPerformance`, { cluster, start, end: end + 1000 });
  return { workload, rows: await read<TrainingRow[]>(address, signal) };
}

function Runs(props: { runs: Compared[]; onDrop: (uid: string) => void }) {
  const now = Date.now() / 1000;
  const last = (rows: TrainingRow[], metric: string) => {
    const found = rows.filter((row) => row.metric === metric);
    return found.length
      ? short(found.reduce((a, b) => (b.timestamp > a.timestamp ? b : a)).value)
      : "–";
  };
  return (
    <Table label={t("Runs")}>
      <thead>
        <tr>
          <th>{t("Run")}</th>
          <th>{t("Status")}</th>
          <th class="right">{t("GPUs")}</th>
          <th>{t("Model")}</th>
          <th class="right">{t("Duration")}</th>
          <th class="right">{t("Last step")}</th>
          <th class="right">{t("Last loss")}</th>
          <th>{t("Remove")}</th>
        </tr>
      </thead>
      <tbody>
        {props.runs.map(({ workload, rows }) => {
          const seconds = workload.startTime ? (workload.endTime || now) - workload.startTime : 0;
          return (
            <tr key={workload.uid}>
              <td class="name">
                <a href={link(["workloads", workload.uid])}>{workload.name}</a>
                <div class="muted small">{workload.namespace}</div>
              </td>
              <td>
                <Badge word={workload.status} />
              </td>
              <td class="right">{count(gpusOf(workload))}</td>
              <td class="soft">{modelsOf(workload)}</td>
              <td class="right">{seconds ? span(seconds) : "–"}</td>
              <td class="right">{last(rows, "step")}</td>
              <td class="right">{last(rows, "loss")}</td>
              <td>
                <button
                  class="button ghost"
                  aria-label={t("Remove {name}", { name: workload.name })}
                  onClick={() => props.onDrop(workload.uid)}
                >
                  {t("Remove")}
                </button>
              </td>
            </tr>
          );
        })}
      </tbody>
    </Table>
  );
}

/** Find a workload by name and add it. */
function Add(props: {
  cluster: string | undefined;
  uids: readonly string[];
  onAdd: (uid: string) => void;
}) {
  const [name, setName] = useState("");
  const found = useResource<WorkloadPage>(
    name ? "api/workloads" : null,
    { cluster: props.cluster, name, pageSize: 8 },
    { keep: true },
  );
  const rows = (name && found.data?.data) || [];
  return (
    <div class="add-run">
      <Search label={t("Add a run by name")} value={name} onChange={setName} />
      {rows
        .filter((row) => !props.uids.includes(row.uid))
        .map((row) => (
          <button
            key={row.uid}
            class="button"
            onClick={() => {
              setName("");
              props.onAdd(row.uid);
            }}
          >
            {row.name} <span class="muted small">{row.namespace}</span>
          </button>
        ))}
      {name && found.data && !rows.length && (
        <span class="muted small">{t("No workload matches.")}</span>
      )}
    </div>
  );
}

function Curves(props: { runs: Compared[]; along: Along }) {
  const { along } = props;
  const curves = useMemo(() => {
    const names = namesOf(props.runs);
    const named: Run[] = props.runs.map((run, place) => ({
      name: names[place] ?? "",
      rows: run.rows,
    }));
    return curvesOf(named, along);
  }, [props.runs, along]);
  if (!curves.length)
    return (
      <Empty icon="usage" title={t("None of these runs has reported training metrics")}>
        {t(
          "Jobs report loss and throughput by pushing them, through Prometheus, or in their logs.",
        )}
      </Empty>
    );
  return (
    <div class="charts two-wide">
      {curves.map((curve) => (
        <div key={curve.metric}>
          <h3>{TITLES[curve.metric] ?? curve.metric}</h3>
          <Lines
            key={along}
            lines={curve.lines}
            label={TITLES[curve.metric] ?? curve.metric}
            height={230}
            loose={LOOSE.has(curve.metric)}
            format={formatOf(curve.metric)}
            {...(along === "time" ? {} : { position: along === "step" ? stepText : span })}
          />
        </div>
      ))}
    </div>
  );
}

function stepText(value: number): string {
  return t("step {step}", { step: value });
}
