// Overview page.
import { useMemo } from "preact/hooks";
import type { ClusterHour, ClusterOverview, NodePage } from "../../api/types";
import { Lines } from "../../charts/lines";
import { plural, t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { link } from "../../state/route";
import { Card, Empty, Loaded, PageHead } from "../../ui/components";
import { rangeName, useRange, zoomTo, type Range } from "../../state/range";
import { RangeChoice } from "../../ui/range";
import { hourAt, hoursOf, lastHours } from "../period";
import { Consumers, Faults, Feed, Hottest, WasteList } from "./lists";
import { MapCard } from "./map_card";
import { Stats } from "./stats";
import { WaitingCard } from "./waiting_card";

const USUAL = "7d";
const HOURS = "api/v1/gpu-aggregation/cluster/hourly-stats";

export function OverviewPage(props: { query: Record<string, string> }) {
  const cluster = props.query["cluster"];
  const overview = useResource<ClusterOverview>(
    "api/clusters/overview",
    { cluster },
    { every: 10_000, on: ["node", "workload", "gpu"] },
  );
  const week = useResource<ClusterHour[]>(
    HOURS,
    { cluster, ...lastHours(7 * 24) },
    { every: 300_000 },
  );
  const range = useRange(props.query, undefined, USUAL);
  const named = rangeName(props.query) || USUAL;
  const other = useResource<ClusterHour[]>(
    named === USUAL ? null : HOURS,
    { cluster, ...hoursOf(range) },
    { every: 300_000, same: `hours ${named}` },
  );
  const hours = named === USUAL ? week : other;
  const faults = useResource<NodePage>(
    "api/nodes",
    { cluster, state: "faulty", pageSize: 6 },
    { every: 20_000, on: ["node", "gpu"] },
  );
  return (
    <>
      <PageHead title={t("Overview")} sub={overview.data ? subtitle(overview.data) : " "} />
      <Stats overview={overview} week={week.data ?? []} />
      <WaitingCard cluster={cluster} />
      <div class="grid">
        <MapCard query={props.query} />
      </div>
      <div class="grid wide-left">
        <Card
          title={t("Allocation and utilization")}
          note={t("by hour; of all GPUs, of allocated GPUs")}
          aside={<RangeChoice query={props.query} range={range} shortest="24h" usual={USUAL} />}
        >
          <Loaded of={hours} missing={t("This server has no hourly statistics")} lines={6}>
            {(data) => <Hours hours={data} range={range} />}
          </Loaded>
        </Card>
        <Card
          title={t("Faults")}
          flush
          aside={
            <a class="small muted" href={link(["nodes"], { state: "faulty" })}>
              {t("All faulty nodes")}
            </a>
          }
        >
          <Loaded of={faults}>{(page) => <Faults page={page} />}</Loaded>
        </Card>
      </div>
      <div class="grid two">
        <Consumers cluster={cluster} />
        <WasteList cluster={cluster} />
      </div>
      <div class="grid two">
        <Hottest cluster={cluster} by={props.query["top"] ?? "power"} />
        <Card title={t("Recent changes")} flush>
          <Feed />
        </Card>
      </div>
    </>
  );
}

function subtitle(overview: ClusterOverview): string {
  return t("{gpus} on {nodes}", {
    gpus: plural(overview.totalGpus, "{n} GPU", "{n} GPUs"),
    nodes: plural(overview.totalNodes, "{n} node", "{n} nodes"),
  });
}

function Hours(props: { hours: ClusterHour[]; range: Range }) {
  const lines = useMemo(
    () => [
      {
        name: t("allocated"),
        points: props.hours.map((hour) => [hour.allocation_rate, hourAt(hour.stat_hour)] as const),
      },
      {
        name: t("utilized"),
        points: props.hours.flatMap((hour) =>
          hour.avg_utilization == null
            ? []
            : [[hour.avg_utilization, hourAt(hour.stat_hour)] as const],
        ),
      },
    ],
    [props.hours],
  );
  if (!props.hours.length)
    return (
      <Empty icon="clock" title={t("No complete hour yet")}>
        {t("The first row appears two minutes after the end of the hour.")}
      </Empty>
    );
  return (
    <Lines
      lines={lines}
      label={t("Allocation and utilization")}
      height={230}
      from={props.range.start}
      to={props.range.end}
      onZoom={zoomTo}
      step={3600}
      min={0}
      max={100}
      format={(value, digits = 0) => `${value.toFixed(digits)}%`}
    />
  );
}
