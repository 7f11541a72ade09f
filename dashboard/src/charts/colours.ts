// Colour scales for colour-blind readers: viridis and inferno, interpolated between a few anchors,
// and eight distinct colours after Okabe and Ito.

import { rememberList, rememberedList } from "../state/storage";

export type Rgb = readonly [number, number, number];
export type Scale = (rate: number) => Rgb;

const VIRIDIS = "440154 482475 414487 355f8d 2a788e 21918c 22a884 44bf70 7ad151 bddf26 fde725";
const INFERNO = "000004 160b39 420a68 6a176e 932667 bc3754 dd513a f37819 fca50a f6d746 fcffa4";

export function parseHex(hex: string): Rgb {
  const value = Number.parseInt(hex.replace("#", ""), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** Return a scale over the part `from`–`to` of the anchors, for rates of 0–1. */
export function scaleOf(anchors: string, from: number, to: number): Scale {
  const colours = anchors.split(" ").map(parseHex);
  return (rate) => {
    const place = (from + Math.min(1, Math.max(0, rate)) * (to - from)) * (colours.length - 1);
    const low = Math.min(colours.length - 2, Math.floor(place));
    const share = place - low;
    const [a, b] = [colours[low] as Rgb, colours[low + 1] as Rgb];
    return [0, 1, 2].map((part) =>
      Math.round((a[part] ?? 0) + ((b[part] ?? 0) - (a[part] ?? 0)) * share),
    ) as unknown as Rgb;
  };
}

export const viridis = scaleOf(VIRIDIS, 0.08, 1);
export const inferno = scaleOf(INFERNO, 0.25, 0.95);

export function css(colour: Rgb): string {
  return `rgb(${colour[0]} ${colour[1]} ${colour[2]})`;
}

const SEPARATE = {
  dark: ["#6ea8fe", "#f0a35e", "#4fc3a1", "#d58ade", "#e5d05a", "#7fd1e8", "#ef7b8b", "#a9b892"],
  light: ["#1f63d6", "#c25e00", "#0b7f5f", "#9a3fb0", "#8a7400", "#0d7f9d", "#c62f4a", "#5b6b3a"],
};

/** Return a colour for each of `count` lines: distinct ones for a few, a scale for many. */
export function lineColours(count: number, theme: "dark" | "light"): string[] {
  const separate = SEPARATE[theme];
  if (count <= separate.length) return separate.slice(0, count);
  const top = theme === "dark" ? 1 : 0.8;
  return Array.from({ length: count }, (_, place) =>
    css(viridis(0.15 + ((top - 0.15) * place) / (count - 1))),
  );
}

/** Return a colour variable of the current theme. */
export function themeColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// After Paul Tol's light scheme, which colour-blind readers can tell apart and on which dark text is legible.
const PALETTE = [
  "#77aadd",
  "#ee8866",
  "#eedd88",
  "#44bb99",
  "#ffaabb",
  "#99ddff",
  "#aaaa00",
  "#c3a5e5",
  "#bbcc33",
  "#e6a23c",
];
/** Coprime to the number of colours, so that every colour is tried. */
const NEXT = 3;
/** How bright the colours of the first, second and third round are. Those on a light page are darker. */
const TONES = { bars: [1, 0.92, 0.84], dark: [1, 0.84, 0.7], light: [0.86, 0.72, 0.58] };
const UNNAMED = "#9aa3b0";
const KEPT = "gpufleet.colours";
const MOST_KEPT = 300;
/** The places of names among the colours. Those of teams are kept by the browser. */
const places = {
  team: new Map<string, number>(rememberedList<[string, number]>(KEPT)),
  workload: new Map<string, number>(),
};

/**
 * Return a colour for each name. A name keeps its colour, whatever is shown beside it: its place comes from the name,
 * moves on if another name has it already, and is remembered.
 */
export function teamColours(
  names: readonly string[],
  tone: keyof typeof TONES = "bars",
  kind: keyof typeof places = "team",
): Map<string, string> {
  const known = places[kind];
  const before = known.size;
  const colours = new Map<string, string>();
  for (const name of [...new Set(names)].sort()) {
    if (name && !known.has(name)) known.set(name, freePlace(known, hashOf(name) % PALETTE.length));
    colours.set(name, name ? colourAt(known.get(name) ?? 0, tone) : UNNAMED);
  }
  if (kind === "team" && known.size > before) rememberList(KEPT, [...known].slice(0, MOST_KEPT));
  return colours;
}

function colourAt(place: number, tone: keyof typeof TONES): string {
  const brightness = TONES[tone][Math.floor(place / PALETTE.length)] ?? 1;
  const colour = PALETTE[place % PALETTE.length] as string;
  const channels = [1, 3, 5].map((at) =>
    Math.round(parseInt(colour.slice(at, at + 2), 16) * brightness),
  );
  return `#${channels.map((channel) => channel.toString(16).padStart(2, "0")).join("")}`;
}

/** Return the place next to `first` that no name has; when all are taken, names share them. */
function freePlace(known: ReadonlyMap<string, number>, first: number): number {
  const all = PALETTE.length * TONES.bars.length;
  if (known.size >= all) return first;
  const taken = new Set(known.values());
  for (let round = 0; round < TONES.bars.length; round++)
    for (let step = 0; step < PALETTE.length; step++) {
      const place = round * PALETTE.length + ((first + step * NEXT) % PALETTE.length);
      if (!taken.has(place)) return place;
    }
  return first;
}

function hashOf(name: string): number {
  let hash = 2166136261;
  for (const letter of name) hash = Math.imul(hash ^ (letter.codePointAt(0) ?? 0), 16777619);
  return (hash ^ (hash >>> 15)) >>> 0;
}
