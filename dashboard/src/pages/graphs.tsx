// Charts of GPU metrics over the time range of the page.
import type { Graph } from "../api/types";
import type { Line } from "../charts/align";
import { Lines } from "../charts/lines";
import type { Format } from "../charts/plot";
import { quantityText } from "../i18n/states";
import { t } from "../i18n/text";
import { zoomTo, type Range } from "../state/range";
import { short } from "../ui/format";
import { Empty } from "../ui/components";

const TRAINING = new Set(["TrainingPerformance", "MFU"]);

export function Graphs(props: { graphs: Record<string, Graph>; range: Range }) {
  const { start, end, step } = props.range;
  const shown = Object.entries(props.graphs)
    .filter(([title]) => !TRAINING.has(title)) // shown in a card of its own
    .filter(([, graph]) => graph.series.some((series) => series.points.length))
    .sort(([, a], [, b]) => a.serial - b.serial);
  if (!shown.length) return <Empty icon="clock" title={t("No readings in this span")} />;
  return (
    <div class="charts">
      {shown.map(([title, graph]) => (
        <div key={title}>
          <h3>{quantityText(title)}</h3>
          <Lines
            lines={graph.series as unknown as Line[]}
            label={quantityText(title)}
            height={190}
            from={start}
            to={end}
            step={step}
            onZoom={zoomTo}
            {...axisOf(graph.config.yAxisUnit)}
          />
        </div>
      ))}
    </div>
  );
}

function axisOf(unit: string): { format: Format; min?: number; max?: number } {
  if (unit === "%")
    return { format: (value, digits = 0) => `${(value * 100).toFixed(digits)}%`, min: 0, max: 1 };
  return { format: (value, digits) => `${short(value, digits)} ${unit}` };
}
