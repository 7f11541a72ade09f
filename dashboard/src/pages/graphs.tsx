// Graphs of the API: each with its unit and one line per GPU.
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Graph } from "../api/types";
import type { Line } from "../charts/align";
import { Lines } from "../charts/lines";
import { short } from "../ui/format";
import { Empty } from "../ui/components";

export const SPANS = [
  ["1h", "1 h"],
  ["6h", "6 h"],
  ["24h", "24 h"],
  ["7d", "7 d"],
] as const;
export type Span = (typeof SPANS)[number][0];
const SECONDS: Record<Span, number> = { "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800 };
const POINTS = 240;
const TRAINING = new Set(["TrainingPerformance", "MFU"]);

/** Return start, end and step in seconds of a range that ends now, or at `end` if given. */
export function spanOf(
  span: Span,
  nowMs: number,
  end = 0,
): { start: number; end: number; step: number } {
  const length = SECONDS[span] ?? 3600;
  const step = Math.max(15, Math.round(length / POINTS));
  const until = Math.ceil((end || nowMs / 1000) / step) * step;
  return { start: until - length, end: until, step };
}

/** Return a range that advances with time unless the workload has ended. */
export function useSpan(span: Span, over = 0): { start: number; end: number; step: number } {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const look = () => document.hidden || setNow(Date.now());
    const timer = setInterval(look, 60_000);
    document.addEventListener("visibilitychange", look);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, []);
  const { start, end, step } = spanOf(span, now, over);
  return useMemo(() => ({ start, end, step }), [start, end, step]);
}

export function Graphs(props: { graphs: Record<string, Graph>; from: number; to: number }) {
  const shown = Object.entries(props.graphs)
    .filter(([title]) => !TRAINING.has(title)) // shown in a card of its own
    .filter(([, graph]) => graph.series.some((series) => series.points.length))
    .sort(([, a], [, b]) => a.serial - b.serial);
  if (!shown.length) return <Empty icon="clock" title="No readings in this span" />;
  return (
    <div class="charts">
      {shown.map(([title, graph]) => (
        <div key={title}>
          <h3>{title}</h3>
          <Lines
            lines={graph.series as unknown as Line[]}
            label={title}
            height={190}
            from={props.from}
            to={props.to}
            {...axisOf(graph.config.yAxisUnit)}
          />
        </div>
      ))}
    </div>
  );
}

function axisOf(unit: string): { format: (value: number) => string; min?: number; max?: number } {
  if (unit === "%") return { format: (value) => `${Math.round(value * 100)}%`, min: 0, max: 1 };
  return { format: (value) => `${short(value)} ${unit}` };
}
