// The options of uPlot for lines, stacked areas and bars over time.
import uPlot from "uplot";
import { session } from "../state/session";
import { distinctLabels } from "../ui/format";
import { alone, type Overlay } from "./align";
import { themeColour } from "./colours";
import { timeLabels } from "./time_labels";

export type Format = (value: number, digits?: number) => string;

export interface Shape {
  height?: number;
  stacked?: boolean;
  /** Bars instead of areas, for daily sums. */
  bars?: boolean | undefined;
  format?: Format;
  min?: number;
  max?: number;
  /** Range of the time axis in seconds; the range of the data by default. */
  from?: number;
  to?: number;
  /** Fit the value axis to the data instead of starting at zero. */
  loose?: boolean;
  /** Format positions on an axis that is not time, such as steps. */
  position?: (value: number) => string;
}

export interface Handlers {
  /** The time under the cursor in seconds, and its distance from the left edge of the chart. */
  onCursor: (at: { time: number; left: number } | null) => void;
  onZoom?: ((from: number, to: number) => void) | undefined;
}

export const HEIGHT = 220;
const DAY = 86_400;
/** Shorter ranges have labels with seconds. */
const NARROW = 600;
/** A shorter drag is a click. */
const SHORTEST_DRAG = 5;
/** Distances between the labels of an axis that is not time. */
const STEPS = [1, 2, 5]
  .flatMap((digit) => Array.from({ length: 8 }, (_, power) => digit * 10 ** power))
  .sort((a, b) => a - b);
/** Charts of one page share the position of the cursor. */
const SYNC = "page";

export function plotOptions(
  shape: Shape,
  width: number,
  colours: string[],
  format: Format,
  handlers: Handlers,
  overlays: readonly Overlay[] = [],
): uPlot.Options {
  const axis = {
    stroke: themeColour("--muted"),
    font: `11px ${themeColour("--sans")}`,
    grid: { stroke: themeColour("--line"), width: 1 },
    ticks: { show: false },
  };
  const { onZoom } = handlers;
  return {
    width,
    height: shape.height ?? HEIGHT,
    padding: [8, shape.position ? 30 : 18, 0, 0],
    legend: { show: false },
    tzDate: (seconds) =>
      session.zone === "UTC"
        ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC")
        : new Date(seconds * 1000),
    cursor: {
      points: { size: 6 },
      y: false,
      drag: { x: onZoom !== undefined, y: false, setScale: false },
      ...(onZoom ? { sync: { key: SYNC, filters: { pub: isMove, sub: isMove } } } : {}),
    },
    scales: {
      x: {
        time: !shape.position,
        range: (_plot, low, high) => timeRange(shape, low, high),
      },
      y: { range: (_plot, low, high) => valueRange(shape, low, high) },
    },
    axes: [
      {
        ...axis,
        size: 28,
        gap: 6,
        space: (_plot, _axis, low, high) => (shape.position || high - low < NARROW ? 80 : 50),
        grid: { show: false },
        values: (_plot, splits) =>
          shape.position ? splits.map(shape.position) : timeLabels(splits, session.zone),
        ...(shape.position ? { incrs: STEPS } : {}),
        ...(shape.bars ? { incrs: [1, 2, 3, 5, 7, 14, 30, 60, 90].map((days) => days * DAY) } : {}),
      },
      {
        ...axis,
        size: (_plot, labels) => widthFor(labels),
        values: (_plot, splits) => distinctLabels(splits, format),
      },
    ],
    series: [{}, ...seriesOf(shape, colours), ...overlays.map(overlaySeries)],
    bands: bandsOf(colours.length, overlays),
    hooks: {
      setCursor: [
        (plot) => {
          const left = plot.cursor.left ?? -1;
          handlers.onCursor(
            left < 0
              ? null
              : { time: plot.posToVal(left, "x"), left: left + plot.bbox.left / devicePixelRatio },
          );
        },
      ],
      setSelect: [
        (plot) => {
          const { left, width: dragged } = plot.select;
          if (!onZoom || dragged < SHORTEST_DRAG) return;
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          onZoom(plot.posToVal(left, "x"), plot.posToVal(left + dragged, "x"));
        },
      ],
    },
  };
}

function isMove(type: string): boolean {
  return type === "mousemove" || type === "mouseleave";
}

function seriesOf(shape: Shape, colours: string[]): uPlot.Series[] {
  const painted = shape.stacked ? [...colours].reverse() : colours;
  return painted.map((colour) => ({
    // White lines separate the groups on paper without colours.
    stroke: shape.stacked && session.printing ? "#ffffff" : colour,
    width: shape.stacked ? 1 : painted.length > 8 ? 1 : 1.5,
    points:
      shape.stacked || shape.bars
        ? { show: false }
        : {
            show: true,
            size: 5,
            fill: colour,
            filter: (plot: uPlot, column: number) => alone(plot.data[column] ?? []),
          },
    ...(shape.bars && uPlot.paths.bars ? { paths: uPlot.paths.bars({ size: [0.72, 56] }) } : {}),
    ...(shape.stacked ? { fill: colour } : painted.length === 1 ? { fill: `${colour}1c` } : {}),
  }));
}

function overlaySeries(overlay: Overlay): uPlot.Series {
  return {
    stroke: overlay.band ? "transparent" : themeColour(overlay.colour),
    width: 1.5,
    points: { show: false },
    spanGaps: true, // a limit has two points
    ...(overlay.dash ? { dash: [6, 4] } : {}),
  };
}

/** Return the filled interval of the overlays, if they have one; `before` series come first. */
function bandsOf(before: number, overlays: readonly Overlay[]): uPlot.Band[] {
  const [low, high] = (["low", "high"] as const).map((edge) =>
    overlays.findIndex((overlay) => overlay.band === edge),
  ) as [number, number];
  if (low < 0 || high < 0) return [];
  const fill = `${themeColour(overlays[high]?.colour ?? "--accent")}33`;
  return [{ series: [before + 1 + high, before + 1 + low], fill }];
}

function timeRange(shape: Shape, low: number, high: number): [number, number] {
  const [from, to] = [shape.from ?? low, shape.to ?? high];
  return shape.bars ? [from - DAY / 2, to + DAY / 2] : [from, to];
}

function valueRange(shape: Shape, low: number | null, high: number | null): [number, number] {
  const room = ((high ?? 0) - (low ?? 0)) * 0.12 || Math.abs(high ?? 1) * 0.05 || 1;
  if (shape.loose && low != null && high != null) return [low - room, high + room];
  return [
    shape.min ?? Math.min(0, low ?? 0),
    shape.max ?? (high == null || high <= 0 ? 1 : high * 1.06),
  ];
}

/** Return the width of the axis for its labels. */
function widthFor(labels: string[] | null): number {
  const longest = Math.max(0, ...(labels ?? []).map((label) => label.length));
  return Math.max(40, Math.ceil(longest * 6.7) + 14);
}
