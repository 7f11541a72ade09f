// Pinch gesture: scale and translation of two fingers.

export interface Point {
  x: number;
  y: number;
}

export interface Pinch {
  /** Zoom factor. */
  factor: number;
  /** Midpoint of the fingers, and its translation. */
  middle: Point;
  moved: Point;
}

export function pinchOf(before: readonly [Point, Point], now: readonly [Point, Point]): Pinch {
  const [was, is] = [middleOf(before), middleOf(now)];
  const spread = distance(before);
  return {
    factor: spread > 0 ? distance(now) / spread : 1,
    middle: is,
    moved: { x: is.x - was.x, y: is.y - was.y },
  };
}

function middleOf([a, b]: readonly [Point, Point]): Point {
  return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
}

function distance([a, b]: readonly [Point, Point]): number {
  return Math.hypot(a.x - b.x, a.y - b.y);
}
