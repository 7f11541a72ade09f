// Colours for names: after Paul Tol's light scheme, which colour-blind readers can tell apart and on which dark
// text is legible.

export const PALETTE = [
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
const UNNAMED = "#9aa3b0";

/** Return a colour for each name. The name decides it, and the next colour is used if another name has it. */
export function paletteColours(names: readonly string[]): Map<string, string> {
  const taken = new Set<number>();
  const found = new Map<string, string>();
  for (const name of [...new Set(names)].sort()) {
    if (!name) {
      found.set(name, UNNAMED);
      continue;
    }
    let place = hashOf(name) % PALETTE.length;
    while (taken.size < PALETTE.length && taken.has(place)) place = (place + NEXT) % PALETTE.length;
    taken.add(place);
    found.set(name, PALETTE[place] as string);
  }
  return found;
}

function hashOf(name: string): number {
  let hash = 2166136261;
  for (const letter of name) hash = Math.imul(hash ^ (letter.codePointAt(0) ?? 0), 16777619);
  return (hash ^ (hash >>> 15)) >>> 0;
}
