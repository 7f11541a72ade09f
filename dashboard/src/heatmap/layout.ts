// Lay out the map. A node is a block two cells high; blocks flow in rows like words. Positions are in
// pixels of the bitmap: a cell is 3 wide with a gap of 1.

export const PITCH = 4;
export const GAP = 4;
export const ROW = 2 * PITCH + GAP;

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

/** Lay out nodes with `counts` GPUs in rows of at most `room` pixels. */
export function layOut(counts: readonly number[], room: number): Layout {
  const nodes = counts.length;
  const columns = Int32Array.from(counts, (count) => Math.max(1, Math.ceil(count / 2)));
  const x = new Int32Array(nodes);
  const y = new Int32Array(nodes);
  const first = new Int32Array(nodes + 1);
  const rows: number[] = [];
  let left = 0;
  let top = -ROW;
  let width = PITCH;
  for (let node = 0; node < nodes; node++) {
    const block = (columns[node] as number) * PITCH + GAP;
    if (node === 0 || left + block - GAP > room) {
      left = 0;
      top += ROW;
      rows.push(node);
    }
    x[node] = left;
    y[node] = top;
    left += block;
    width = Math.max(width, left - GAP);
    first[node + 1] = (first[node] as number) + (counts[node] as number);
  }
  rows.push(nodes);
  return { width, height: Math.max(ROW, top + ROW), x, y, columns, first, rows };
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

/** Return the node of a GPU. */
export function nodeOf(layout: Layout, gpu: number): number {
  let low = 0;
  let high = layout.x.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((layout.first[middle] as number) <= gpu) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Return the GPU at a position of the bitmap, or -1. */
export function gpuAt(layout: Layout, px: number, py: number): number {
  const row = Math.floor(py / ROW);
  if (px < 0 || py < 0 || row >= layout.rows.length - 1) return -1;
  let low = layout.rows[row] as number;
  let high = (layout.rows[row + 1] as number) - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((layout.x[middle] as number) <= px) low = middle;
    else high = middle - 1;
  }
  const columns = layout.columns[low] as number;
  const column = Math.floor((px - (layout.x[low] as number)) / PITCH);
  const line = Math.floor((py - row * ROW) / PITCH);
  const at = line * columns + column;
  const count = (layout.first[low + 1] as number) - (layout.first[low] as number);
  return column < columns && line < 2 && at < count ? (layout.first[low] as number) + at : -1;
}
