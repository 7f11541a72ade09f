// The colour of every GPU: an entry of a table, by a metric, or by team, workload or health.
import type { GpuMap } from "../api/types";
import {
  inferno,
  parseHex,
  teamColours,
  themeColour,
  viridis,
  type Rgb,
  type Scale,
} from "../charts/colours";
import { t } from "../i18n/text";

export const METRICS = ["utilization", "temperature", "power", "memory", "age"] as const;
export type Metric = (typeof METRICS)[number];
export type ColourBy = Metric | "team" | "workload" | "health";

export function isMetric(by: ColourBy): by is Metric {
  return (METRICS as readonly string[]).includes(by);
}

/** States with a colour of their own, at the start of the table. */
export const FREE = 0;
export const NONE = 1;
export const BROKEN = 2;
export const DRAINING = 3;
export const CORDONED = 4;
export const UNCHECKED = 5;
const STATES = 6;
const STEPS = 101;
const HEALTHY = "#44bb99";
/** Entries of the legend for teams and workloads. */
const MOST_NAMED = 9;

export interface Entry {
  name: string;
  colour: Rgb;
  count: number;
  state?: number;
}

export interface Colouring {
  table: Rgb[];
  /** The entry in `table` of each GPU. */
  cell: Uint16Array;
  scale: { low: number; high: number; unit: string; colour: Scale } | null;
  /** The legend: categories, the most frequent first, then the states that occur. */
  entries: Entry[];
  /** Categories that are not in the legend. */
  more: number;
}

export function colouringOf(map: GpuMap, by: ColourBy): Colouring {
  const table = stateColours();
  const made = isMetric(by) ? byMetric(map, by, table) : byName(map, by, table);
  return { ...made, table, entries: [...made.entries, ...states(made.cell, by, table)] };
}

function stateColours(): Rgb[] {
  return [
    "--heat-free",
    "--heat-none",
    "--heat-bad",
    "--heat-drain",
    "--heat-cordon",
    "--heat-none",
  ].map((name) => parseHex(themeColour(name)));
}

type Made = Omit<Colouring, "table">;

function byMetric(map: GpuMap, by: Metric, table: Rgb[]): Made {
  const colour = by === "utilization" || by === "memory" ? viridis : inferno;
  const [low, high] = limits(map, by);
  for (let step = 0; step < STEPS; step++) table.push(colour(step / (STEPS - 1)));
  const cell = new Uint16Array(map.values.length);
  for (let gpu = 0; gpu < cell.length; gpu++) {
    const mark = map.marks[gpu];
    const value = map.values[gpu] ?? null;
    if (mark === "x") cell[gpu] = BROKEN;
    else if (mark === "d") cell[gpu] = DRAINING;
    else if (by === "utilization" && mark !== "h" && mark !== "p" && (value ?? 0) < 5)
      cell[gpu] = mark === "c" ? CORDONED : FREE;
    else if (value === null) cell[gpu] = NONE;
    else {
      const rate = Math.min(1, Math.max(0, (value - low) / (high - low)));
      cell[gpu] = STATES + Math.round(rate * (STEPS - 1));
    }
  }
  return { cell, scale: { low, high, unit: map.unit, colour }, entries: [], more: 0 };
}

function limits(map: GpuMap, by: Metric): [number, number] {
  if (by === "temperature") return [25, 90];
  if (by === "utilization" || by === "memory") return [0, 100];
  const step = by === "age" ? 60 : 100;
  let high = step;
  for (const value of map.values) if (value !== null && value > high) high = value;
  return [0, Math.ceil(high / step) * step];
}

function byName(map: GpuMap, by: ColourBy, table: Rgb[]): Made {
  const names = by === "health" ? [t("healthy")] : map.holders.map((holder) => nameOf(holder, by));
  const colours =
    by === "team"
      ? teamColours(names)
      : by === "health"
        ? new Map([[t("healthy"), HEALTHY]])
        : teamColours(names, "bars", "workload");
  const places = new Map<string, number>();
  for (const [name, colour] of colours) {
    places.set(name, table.length);
    table.push(parseColour(colour));
  }
  const cell = new Uint16Array(map.values.length);
  const counts = new Map<string, number>();
  for (let gpu = 0; gpu < cell.length; gpu++) {
    const mark = map.marks[gpu] ?? "f";
    const state = stateOf(mark, by);
    const name = by === "health" ? t("healthy") : names[map.holderOf[gpu] ?? -1];
    if (state !== null) cell[gpu] = state;
    else if (name === undefined) cell[gpu] = mark === "h" || mark === "p" ? NONE : FREE;
    else {
      cell[gpu] = places.get(name) ?? NONE;
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  const ordered = [...counts].sort(([a, m], [b, n]) => n - m || a.localeCompare(b));
  const entries = ordered.slice(0, MOST_NAMED).map(([name, count]) => ({
    name: name || t("another namespace"),
    colour: table[places.get(name) ?? NONE] as Rgb,
    count,
  }));
  return { cell, scale: null, entries, more: Math.max(0, ordered.length - MOST_NAMED) };
}

/** Parse a colour in any notation of CSS. */
function parseColour(colour: string): Rgb {
  if (colour.startsWith("#")) return parseHex(colour);
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  if (!context) return parseHex("#9aa3b0");
  context.fillStyle = colour;
  return parseHex(context.fillStyle);
}

function nameOf(holder: GpuMap["holders"][number], by: ColourBy): string {
  return by === "team" ? holder.team : holder.name && `${holder.namespace}/${holder.name}`;
}

/** Return the state that decides the colour whatever holds the GPU; null if there is none. */
function stateOf(mark: string, by: ColourBy): number | null {
  if (mark === "x") return BROKEN;
  if (mark === "d") return DRAINING;
  if (mark === "c") return CORDONED;
  return by === "health" && mark === "u" ? UNCHECKED : null;
}

function states(cell: Uint16Array, by: ColourBy, table: Rgb[]): Entry[] {
  const counts = new Array<number>(STATES).fill(0);
  for (const entry of cell) if (entry < STATES) counts[entry] = (counts[entry] ?? 0) + 1;
  const none = isMetric(by) ? t("no reading") : t("allocated, holder unknown");
  const names = [
    t("free"),
    none,
    t("unhealthy"),
    t("draining"),
    t("cordoned"),
    t("health unknown"),
  ];
  return names.flatMap((name, state) =>
    counts[state] ? [{ name, colour: table[state] as Rgb, count: counts[state] ?? 0, state }] : [],
  );
}
