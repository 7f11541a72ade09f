// The viewport of the map: what is visible, and how keys and zooming move it.
import { gpuBeyond, nodeOf, placeOf, PITCH, type Layout } from "./layout";

/** screen = (bitmap + offset) * scale. */
export interface View {
  scale: number;
  x: number;
  y: number;
}

export interface Size {
  width: number;
  height: number;
}

/** Keep the map in the viewport: never smaller than it fits, never beyond its edges. */
export function bounded(view: View, layout: Layout, size: Size, fit: number): View {
  const scale = Math.max(fit, view.scale);
  const keep = (offset: number, inner: number, outer: number) =>
    inner * scale <= outer ? 0 : Math.min(0, Math.max(outer / scale - inner, offset));
  return {
    scale,
    x: keep(view.x, layout.width, size.width),
    y: keep(view.y, layout.height, size.height),
  };
}

/** Zoom so that the point under (px, py) stays where it is. */
export function zoomed(view: View, scale: number, px: number, py: number): View {
  return {
    scale,
    x: view.x + px / scale - px / view.scale,
    y: view.y + py / scale - py / view.scale,
  };
}

/** Move as little as needed to show a GPU. */
export function inSight(view: View, layout: Layout, gpu: number, size: Size): View {
  const [px, py] = placeOf(layout, nodeOf(layout, gpu), gpu);
  const x = Math.min(Math.max(view.x, -px), size.width / view.scale - px - PITCH);
  const y = Math.min(Math.max(view.y, -py), size.height / view.scale - py - PITCH);
  return { ...view, x, y };
}

/** Return the middle of a GPU on the screen. */
export function onScreen(view: View, layout: Layout, gpu: number): [number, number] {
  const [px, py] = placeOf(layout, nodeOf(layout, gpu), gpu);
  return [(px + view.x + PITCH / 2) * view.scale, (py + view.y + PITCH / 2) * view.scale];
}

/** Return the GPU that an arrow key moves to; null for other keys. */
export function steered(key: string, cursor: number, layout: Layout, total: number): number | null {
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key) || !total) return null;
  if (cursor < 0) return 0;
  if (key === "ArrowLeft") return Math.max(0, cursor - 1);
  if (key === "ArrowRight") return Math.min(total - 1, cursor + 1);
  return gpuBeyond(layout, cursor, key === "ArrowDown" ? 1 : -1);
}
