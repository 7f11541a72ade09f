// Events, logs and the manifest of a workload on Kubernetes, if Kubernetes lets the caller read them.
import { useState } from "preact/hooks";
import type { Log, Manifest, WorkloadDetail, WorkloadEvent } from "../api/types";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { setQuery } from "../state/route";
import { Ago, Badge, Card, Choice, Empty, Loaded, Select } from "../ui/components";
import { count } from "../ui/format";
import { Table } from "../ui/table";

const TABS = [
  ["events", t("Events")],
  ["logs", t("Logs")],
  ["yaml", "YAML"],
] as const;
const LINES = ["100", "500", "2000", "5000"];
type Tab = (typeof TABS)[number][0];

interface Props {
  workload: WorkloadDetail;
  query: Record<string, string>;
}

export function WorkloadObjects(props: Props) {
  const tab = TABS.find(([name]) => name === props.query["tab"])?.[0] ?? "events";
  return (
    <Card
      title={t("Events, logs and YAML")}
      flush={tab === "events"}
      aside={
        <Choice<Tab>
          label={t("Show")}
          value={tab}
          options={TABS}
          onChange={(chosen) => setQuery({ tab: chosen === "events" ? undefined : chosen })}
        />
      }
    >
      {tab === "events" && <Events {...props} />}
      {tab === "logs" && <Logs {...props} />}
      {tab === "yaml" && <Yaml {...props} />}
    </Card>
  );
}

function pathOf(props: Props, what: string): string {
  return `api/workloads/${encodeURIComponent(props.workload.uid)}/${what}`;
}

function Events(props: Props) {
  const events = useResource<WorkloadEvent[]>(
    pathOf(props, "events"),
    { cluster: props.query["cluster"] },
    { every: 20_000, on: ["workload"] },
  );
  return (
    <Loaded of={events} missing={t("This server does not read events")}>
      {(rows) =>
        rows.length ? (
          <Table label={t("Events")}>
            <thead>
              <tr>
                <th>{t("Seen")}</th>
                <th>{t("Type")}</th>
                <th>{t("Reason")}</th>
                <th>{t("Object")}</th>
                <th>{t("Message")}</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((event, place) => (
                <tr key={place}>
                  <td>
                    {event.last ? <Ago at={Date.parse(event.last)} /> : ""}
                    {event.count > 1 && <span class="muted"> ×{count(event.count)}</span>}
                  </td>
                  <td>
                    <Badge word={event.type} tone={event.type === "Warning" ? "warn" : "idle"} />
                  </td>
                  <td>{event.reason}</td>
                  <td class="soft">{event.name}</td>
                  <td class="words">{event.message}</td>
                </tr>
              ))}
            </tbody>
          </Table>
        ) : (
          <Empty title={t("No events")}>
            {t("Kubernetes deletes events after about an hour.")}
          </Empty>
        )
      }
    </Loaded>
  );
}

function Logs(props: Props) {
  const pods = props.workload.pods.map((pod) => pod.podName);
  const [lines, setLines] = useState("500");
  const [container, setContainer] = useState("");
  const pod = props.query["pod"] ?? pods[0] ?? "";
  const log = useResource<Log>(
    pods.length ? pathOf(props, "logs") : null,
    { cluster: props.query["cluster"], pod, container, lines },
    { every: 15_000, keep: true },
  );
  if (!pods.length) return <Empty title={t("No pods")} />;
  return (
    <>
      <div class="filters">
        <Select
          label={t("Pod")}
          value={pod}
          options={pods.slice(0, 200)}
          onChange={(name) => setQuery({ pod: name })}
        />
        <Select
          label={t("Lines")}
          value={lines}
          options={LINES}
          words={Object.fromEntries(
            LINES.map((each) => [each, t("last {n} lines", { n: Number(each) })]),
          )}
          onChange={setLines}
        />
        <input
          class="field"
          aria-label={t("Container")}
          placeholder={t("Container")}
          value={container}
          onChange={(event) => setContainer(event.currentTarget.value.trim())}
        />
      </div>
      <Loaded of={log} missing={t("Kubernetes has no log of this pod")} lines={8}>
        {(data) =>
          data.text ? (
            <pre class="code" tabIndex={0} role="region" aria-label={t("Log")}>
              {data.text}
            </pre>
          ) : (
            <Empty title={t("The log is empty")} />
          )
        }
      </Loaded>
    </>
  );
}

function Yaml(props: Props) {
  const manifest = useResource<Manifest>(pathOf(props, "manifest"), {
    cluster: props.query["cluster"],
  });
  return (
    <Loaded of={manifest} missing={t("Kubernetes no longer has this object")} lines={8}>
      {(data) => (
        <pre class="code" tabIndex={0} role="region" aria-label="YAML">
          {data.yaml}
        </pre>
      )}
    </Loaded>
  );
}
