// The map of all GPUs with its controls: colour, group, find. They are kept in the URL.
import { useMemo } from "preact/hooks";
import type { ClusterNames, GpuMap } from "../../api/types";
import { groupings } from "../../heatmap/arrange";
import { isMetric, type ColourBy } from "../../heatmap/colouring";
import { HeatMap } from "../../heatmap/heatmap";
import { midSentence, quantityText } from "../../i18n/states";
import { plural, t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { setQuery } from "../../state/route";
import { Card, Choice, Empty, Loaded, Search, Select } from "../../ui/components";
import { count } from "../../ui/format";

const COLOURS = (
  [
    "utilization",
    "temperature",
    "power",
    "memory",
    "team",
    "workload",
    "health",
    "age",
  ] satisfies ColourBy[]
).map((name) => [name, quantityText(name)] as const);

export function MapCard(props: { query: Record<string, string> }) {
  const { cluster, group = "", find = "" } = props.query;
  const by = COLOURS.find(([name]) => name === props.query["by"])?.[0] ?? "utilization";
  const clusters = useResource<ClusterNames>("api/clusters");
  const map = useResource<GpuMap>(
    "api/v1/gpu/map",
    {
      cluster: group === "cluster" ? "*" : cluster,
      quantity: isMetric(by) ? by : "utilization",
      details: "true",
    },
    { every: 15_000, on: ["gpu", "node"], keep: true },
  );
  const groups = groupings(map.data, clusters.data?.length ?? 1);
  return (
    <Card
      title={t("Every GPU")}
      note={
        map.data
          ? t("{gpus} on {nodes}", {
              gpus: count(map.data.values.length),
              nodes: plural(map.data.nodes.length, "{n} node", "{n} nodes"),
            })
          : undefined
      }
      aside={
        <Choice
          label={t("Colour by")}
          value={by}
          options={COLOURS}
          onChange={(chosen) => setQuery({ by: chosen === "utilization" ? undefined : chosen })}
        />
      }
    >
      <Loaded of={map} lines={7}>
        {(data) =>
          data.values.length ? (
            <>
              <div class="heat-controls">
                <Search
                  label={t("Find a node, workload, team or user")}
                  value={find}
                  onChange={(text) => setQuery({ find: text || undefined })}
                />
                <Select
                  label={t("Group by")}
                  value={group}
                  any={t("Not grouped")}
                  options={Object.keys(groups)}
                  words={Object.fromEntries(
                    Object.entries(groups).map(([key, words]) => [
                      key,
                      t("By {group}", { group: midSentence(words) }),
                    ]),
                  )}
                  onChange={(chosen) => setQuery({ group: chosen || undefined })}
                />
              </div>
              <Aged map={data} by={by} group={group} text={find} />
            </>
          ) : (
            <Empty title={t("No GPUs yet")}>
              {t("GPU nodes appear here as soon as a source reports them.")}
            </Empty>
          )
        }
      </Loaded>
    </Card>
  );
}

/** Show the map; ages grow while no newer readings arrive. */
function Aged(props: { map: GpuMap; by: ColourBy; group: string; text: string }) {
  const { map } = props;
  const shown = useMemo(() => {
    if (map.quantity !== "age") return map;
    const since = Math.max(0, Math.round(Date.now() / 1000 - map.takenAt));
    return { ...map, values: map.values.map((value) => (value === null ? null : value + since)) };
  }, [map]);
  return <HeatMap map={shown} colourBy={props.by} groupBy={props.group} text={props.text} />;
}
