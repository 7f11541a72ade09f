// Lay out the map. A node is a block two cells high; blocks flow in rows like words. A few groups begin on a
// row of their own below a heading; many groups only have a wider gap between them. Positions are in
// pixels of the bitmap: a cell is 3 wide with a gap of 1.
import type { Section } from "./arrange";

export const PITCH = 4;
export const GAP = 4;
export const ROW = 2 * PITCH + GAP;
/** More groups than this have no headings: the map would be mostly headings. */
export const MOST_HEADINGS = 40;

export interface Heading {
  name: string;
  y: number;
}

export interface Layout {
  width: number;
  height: number;
  /** Position of each node's block. */
  x: Int32Array;
  y: Int32Array;
  /** Cells per row of the block. */
  columns: Int32Array;
  /** Index of the first GPU of each node, plus the total at the end. */
  first: Int32Array;
  /** Index of the first node of each row, plus the total at the end. */
  rows: number[];
  /** Position of each row. */
  tops: number[];
  headings: Heading[];
}

/** Return the initial zoom: legible cells for a few GPUs, the largest that fits `height` for many. */
export function scaleFor(
  counts: readonly number[],
  width: number,
  height: number,
  largest: number,
): number {
  let area = 0;
  for (const count of counts) area += (Math.max(1, Math.ceil(count / 2)) * PITCH + GAP) * ROW;
  return area ? Math.min(largest, Math.sqrt((width * height) / area)) : largest;
}

/** Lay out nodes with `counts` GPUs in rows of at most `room` pixels; a heading is `heading` high. */
export function layOut(
  counts: readonly number[],
  room: number,
  sections: readonly Section[] = [],
  heading = 0,
): Layout {
  const nodes = counts.length;
  const columns = Int32Array.from(counts, (count) => Math.max(1, Math.ceil(count / 2)));
  const x = new Int32Array(nodes);
  const y = new Int32Array(nodes);
  const first = new Int32Array(nodes + 1);
  const [rows, tops, headings]: [number[], number[], Heading[]] = [[], [], []];
  const starts = new Map(sections.map((section) => [section.first, section.name]));
  const headed = sections.length > 0 && sections.length <= MOST_HEADINGS;
  let left = 0;
  let top = -ROW;
  let width = PITCH;
  for (let node = 0; node < nodes; node++) {
    const block = (columns[node] as number) * PITCH + GAP;
    const name = starts.get(node);
    if (name !== undefined && !headed && left) left += 2 * GAP;
    if (node === 0 || left + block - GAP > room || (name !== undefined && headed)) {
      left = 0;
      top += ROW;
      if (name !== undefined && headed) {
        headings.push({ name, y: top });
        top += heading;
      }
      rows.push(node);
      tops.push(top);
    }
    x[node] = left;
    y[node] = top;
    left += block;
    width = Math.max(width, left - GAP);
    first[node + 1] = (first[node] as number) + (counts[node] as number);
  }
  rows.push(nodes);
  const height = Math.max(ROW, top + ROW);
  return { width, height, x, y, columns, first, rows, tops, headings };
}

/** Return the position of a GPU in the bitmap. */
export function placeOf(layout: Layout, node: number, gpu: number): [number, number] {
  const at = gpu - (layout.first[node] as number);
  const columns = layout.columns[node] as number;
  return [
    (layout.x[node] as number) + (at % columns) * PITCH,
    (layout.y[node] as number) + Math.floor(at / columns) * PITCH,
  ];
}

/** Return the index of the last of `values`, in ascending order, that is at most `value`; 0 if none is. */
function lastAtMost(values: ArrayLike<number>, value: number, low = 0, high = values.length - 1) {
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((values[middle] as number) <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Return the node of a GPU. */
export function nodeOf(layout: Layout, gpu: number): number {
  return lastAtMost(layout.first, gpu, 0, layout.x.length - 1);
}

/** Return the row at a height of the bitmap. */
export function rowAt(layout: Layout, py: number): number {
  return lastAtMost(layout.tops, py);
}

/** Return the GPU at a position of the bitmap, or -1. */
export function gpuAt(layout: Layout, px: number, py: number): number {
  const row = rowAt(layout, py);
  if (px < 0 || py < (layout.tops[row] ?? 0)) return -1;
  const node = nodeAt(layout, row, px);
  const columns = layout.columns[node] as number;
  const column = Math.floor((px - (layout.x[node] as number)) / PITCH);
  const line = Math.floor((py - (layout.tops[row] as number)) / PITCH);
  const at = line * columns + column;
  const count = (layout.first[node + 1] as number) - (layout.first[node] as number);
  return column < columns && line < 2 && at < count ? (layout.first[node] as number) + at : -1;
}

function nodeAt(layout: Layout, row: number, px: number): number {
  return lastAtMost(layout.x, px, layout.rows[row] as number, (layout.rows[row + 1] as number) - 1);
}

/** Return the GPU above (-1) or below (1) another; the same at the edge of the map. */
export function gpuBeyond(layout: Layout, gpu: number, direction: 1 | -1): number {
  const node = nodeOf(layout, gpu);
  const columns = layout.columns[node] as number;
  const first = layout.first[node] as number;
  const line = Math.floor((gpu - first) / columns);
  const beside = gpu + direction * columns;
  if (line + direction >= 0 && line + direction < 2 && beside < (layout.first[node + 1] as number))
    return beside;
  const row = lastAtMost(layout.rows, node, 0, layout.rows.length - 2) + direction;
  if (row < 0 || row > layout.rows.length - 2) return gpu;
  const [px] = placeOf(layout, node, gpu);
  const next = nodeAt(layout, row, px);
  const count = (layout.first[next + 1] as number) - (layout.first[next] as number);
  const wide = layout.columns[next] as number;
  const column = Math.min(
    wide - 1,
    Math.max(0, Math.floor((px - (layout.x[next] as number)) / PITCH)),
  );
  const at = direction < 0 && wide + column < count ? wide + column : column;
  return (layout.first[next] as number) + Math.min(at, count - 1);
}
