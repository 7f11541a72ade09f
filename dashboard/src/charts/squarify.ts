// Lay out a treemap: rectangles whose areas are proportional to their values, as square as possible.

export interface Tile<T> {
  item: T;
  /** Position and size as shares of the whole, 0–1. */
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Return the tiles of items with positive values, the largest first; `aspect` is the width of the whole over its height. */
export function squarify<T>(
  items: readonly T[],
  valueOf: (item: T) => number,
  aspect: number,
): Tile<T>[] {
  const rest = items.filter((item) => valueOf(item) > 0).sort((a, b) => valueOf(b) - valueOf(a));
  const total = rest.reduce((sum, item) => sum + valueOf(item), 0);
  const tiles: Tile<T>[] = [];
  // In units in which the whole has the height 1.
  let [left, top, width, height] = [0, 0, aspect, 1];
  let start = 0;
  const areaOf = (item: T) => (valueOf(item) / total) * aspect;
  while (start < rest.length) {
    const side = Math.min(width, height);
    let [end, sum] = [start, 0];
    let worst = Infinity;
    while (end < rest.length) {
      const next = sum + areaOf(rest[end] as T);
      const candidate = worstRatio(areaOf(rest[start] as T), areaOf(rest[end] as T), next, side);
      if (candidate > worst) break;
      [worst, sum, end] = [candidate, next, end + 1];
    }
    const thickness = sum / side;
    let offset = 0;
    for (const item of rest.slice(start, end)) {
      const length = areaOf(item) / thickness;
      const across = width >= height;
      tiles.push({
        item,
        left: (left + (across ? 0 : offset)) / aspect,
        top: top + (across ? offset : 0),
        width: (across ? thickness : length) / aspect,
        height: across ? length : thickness,
      });
      offset += length;
    }
    if (width >= height) [left, width] = [left + thickness, width - thickness];
    else [top, height] = [top + thickness, height - thickness];
    start = end;
  }
  return tiles;
}

/** Return the worst ratio of sides in a row with these largest and smallest areas and their sum. */
function worstRatio(largest: number, smallest: number, sum: number, side: number): number {
  const square = side * side;
  return Math.max((square * largest) / (sum * sum), (sum * sum) / (square * smallest));
}
