// Paint the map. When data changes, the whole fleet is painted into one bitmap with a few pixels per
// GPU; a frame is one scaled copy of it. When cells are large enough, the visible ones are drawn
// individually with islands, names and marks instead.
import type { GpuMap } from "../api/types";
import { css, parseHex, themeColour, type Rgb } from "../charts/colours";
import type { Matches } from "./arrange";
import { BROKEN, CORDONED, DRAINING, NONE, UNCHECKED, type Colouring } from "./colouring";
import { nodeOf, placeOf, PITCH, rowAt, type Layout } from "./layout";
import type { Size, View } from "./view";

/** Cell width on screen from which cells are drawn individually. */
export const CLOSE = 9;
/** Cell size from which corners are rounded. */
const ROUND = 14;
/** Opacity of GPUs that a search does not find. */
const FAINT = 0.16;
/** Found GPUs are outlined if there are at most this many. */
const MOST_OUTLINED = 400;

/** What is painted, and the colours of the theme around it. */
export interface Scene {
  map: GpuMap;
  layout: Layout;
  colouring: Colouring;
  found: Matches | null;
  plate: string;
  text: string;
  ink: string;
  panel: Rgb;
}

export function sceneOf(
  map: GpuMap,
  layout: Layout,
  colouring: Colouring,
  found: Matches | null,
): Scene {
  return {
    map,
    layout,
    colouring,
    found,
    plate: themeColour("--heat-plate"),
    text: themeColour("--muted"),
    ink: themeColour("--text"),
    panel: parseHex(themeColour("--panel")),
  };
}

/** Paint the map as pixels. */
export function paintBitmap(scene: Scene): ImageData {
  const { layout, colouring, found } = scene;
  const image = new ImageData(layout.width, layout.height);
  const pixels = new Uint32Array(image.data.buffer);
  const strong = colouring.table.map(packed);
  const faint = colouring.table.map((colour) => packed(mixed(colour, scene.panel, FAINT)));
  for (let node = 0; node < layout.x.length; node++) {
    const end = layout.first[node + 1] as number;
    for (let gpu = layout.first[node] as number; gpu < end; gpu++) {
      const entry = colouring.cell[gpu] as number;
      const colour = (found && !found.gpus[gpu] ? faint[entry] : strong[entry]) as number;
      const [x, y] = placeOf(layout, node, gpu);
      const start = y * layout.width + x;
      for (let line = 0; line < PITCH - 1; line++) {
        pixels.fill(colour, start + line * layout.width, start + line * layout.width + PITCH - 1);
      }
    }
  }
  return image;
}

function mixed(colour: Rgb, ground: Rgb, share: number): Rgb {
  return [0, 1, 2].map((part) =>
    Math.round((colour[part] ?? 0) * share + (ground[part] ?? 0) * (1 - share)),
  ) as unknown as Rgb;
}

function packed([red, green, blue]: Rgb): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

export function drawFar(
  context: CanvasRenderingContext2D,
  bitmap: CanvasImageSource,
  scene: Scene,
  view: View,
): void {
  context.imageSmoothingEnabled = view.scale < 1;
  context.imageSmoothingQuality = "low";
  context.drawImage(
    bitmap,
    view.x * view.scale,
    view.y * view.scale,
    scene.layout.width * view.scale,
    scene.layout.height * view.scale,
  );
}

export function drawClose(
  context: CanvasRenderingContext2D,
  scene: Scene,
  view: View,
  size: Size,
): void {
  const { layout } = scene;
  const last = Math.min(layout.tops.length - 1, rowAt(layout, size.height / view.scale - view.y));
  for (let row = rowAt(layout, -view.y); row <= last; row++) {
    for (let node = layout.rows[row] as number; node < (layout.rows[row + 1] as number); node++) {
      const left = ((layout.x[node] as number) + view.x) * view.scale;
      const wide = (layout.columns[node] as number) * PITCH * view.scale;
      if (left > size.width || left + wide < 0) continue;
      drawIslands(context, scene, view, node);
      drawGpus(context, scene, view, node);
      if (wide > 64) drawName(context, scene, view, node, left, wide);
    }
  }
  context.globalAlpha = 1;
}

function drawGpus(context: CanvasRenderingContext2D, scene: Scene, view: View, node: number): void {
  const { layout, colouring, found } = scene;
  const cell = (PITCH - 0.55) * view.scale;
  const round = Math.min(4, cell / 5);
  const end = layout.first[node + 1] as number;
  for (let gpu = layout.first[node] as number; gpu < end; gpu++) {
    const [px, py] = placeOf(layout, node, gpu);
    const x = (px + view.x + 0.28) * view.scale;
    const y = (py + view.y + 0.28) * view.scale;
    const entry = colouring.cell[gpu] as number;
    context.globalAlpha = found && !found.gpus[gpu] ? FAINT : 1;
    context.fillStyle = css(colouring.table[entry] as Rgb);
    if (cell < ROUND) context.fillRect(x, y, cell, cell);
    else {
      context.beginPath();
      context.roundRect(x, y, cell, cell, round);
      context.fill();
    }
    if (entry === BROKEN) drawCross(context, x, y, cell);
    else if (entry === DRAINING) drawStripes(context, "#3d2400", x, y, cell, 1);
    else if (entry === NONE || entry === UNCHECKED)
      drawStripes(context, scene.plate, x, y, cell, 2);
    else if (entry === CORDONED) drawBar(context, scene.text, x, y, cell);
  }
  context.globalAlpha = 1;
}

/** Draw the background of a node, split where the island changes between its two rows. */
function drawIslands(
  context: CanvasRenderingContext2D,
  scene: Scene,
  view: View,
  node: number,
): void {
  const { map, layout } = scene;
  const first = layout.first[node] as number;
  const columns = layout.columns[node] as number;
  const count = (layout.first[node + 1] as number) - first;
  const x = ((layout.x[node] as number) + view.x - 0.3) * view.scale;
  const y = ((layout.y[node] as number) + view.y - 0.3) * view.scale;
  const wide = (columns * PITCH + 0.55) * view.scale;
  const split =
    count > columns &&
    map.islands[first] !== map.islands[first + columns] &&
    map.islands[first] !== "-";
  context.fillStyle = scene.plate;
  context.beginPath();
  const line = PITCH * view.scale;
  const lines = count > columns ? 2 : 1;
  if (split) {
    context.roundRect(x, y, wide, line, 5);
    context.roundRect(x, y + line + 0.55 * view.scale, wide, line, 5);
  } else context.roundRect(x, y, wide, line * lines + 0.55 * view.scale, 5);
  context.fill();
}

function drawCross(context: CanvasRenderingContext2D, x: number, y: number, cell: number): void {
  const edge = cell * 0.3;
  context.strokeStyle = "#2a0508";
  context.lineWidth = Math.max(1, cell / 10);
  context.beginPath();
  context.moveTo(x + edge, y + edge);
  context.lineTo(x + cell - edge, y + cell - edge);
  context.moveTo(x + cell - edge, y + edge);
  context.lineTo(x + edge, y + cell - edge);
  context.stroke();
}

/** Draw diagonal lines over a cell: one for draining, several for no reading. */
function drawStripes(
  context: CanvasRenderingContext2D,
  colour: string,
  x: number,
  y: number,
  cell: number,
  count: number,
): void {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, cell / 9);
  context.beginPath();
  for (let line = 1; line <= count; line++) {
    const at = (cell * 2 * line) / (count + 1);
    const [near, far] = [Math.max(0, at - cell), Math.min(cell, at)];
    context.moveTo(x + near, y + far);
    context.lineTo(x + far, y + near);
  }
  context.stroke();
}

function drawBar(
  context: CanvasRenderingContext2D,
  colour: string,
  x: number,
  y: number,
  cell: number,
): void {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, cell / 12);
  context.beginPath();
  context.moveTo(x + cell * 0.3, y + cell / 2);
  context.lineTo(x + cell * 0.7, y + cell / 2);
  context.stroke();
}

function drawName(
  context: CanvasRenderingContext2D,
  scene: Scene,
  view: View,
  node: number,
  x: number,
  wide: number,
): void {
  const size = Math.min(12, 2.6 * view.scale);
  if (size < 8) return;
  const name = scene.map.nodes[node] ?? "";
  const y = ((scene.layout.y[node] as number) + 2 * PITCH + view.y) * view.scale;
  context.fillStyle = scene.text;
  context.font = `500 ${size}px "Geist Variable", sans-serif`;
  const room = Math.floor(wide / (size * 0.56));
  context.fillText(
    name.length > room ? `…${name.slice(1 - room)}` : name,
    x,
    y + 0.6 * view.scale + size,
  );
}

/** Draw the names of the groups above their nodes. */
export function drawHeadings(
  context: CanvasRenderingContext2D,
  scene: Scene,
  view: View,
  size: Size,
): void {
  context.fillStyle = scene.ink;
  context.font = '550 12px "Geist Variable", sans-serif';
  for (const { name, y } of scene.layout.headings) {
    const top = (y + view.y) * view.scale;
    if (top > -20 && top < size.height) context.fillText(name, 1, top + 12);
  }
}

/** Outline the GPUs that a search found, if they are few. */
export function drawFound(context: CanvasRenderingContext2D, scene: Scene, view: View): void {
  const { found } = scene;
  if (!found || found.count > MOST_OUTLINED) return;
  for (let gpu = found.gpus.indexOf(1); gpu >= 0; gpu = found.gpus.indexOf(1, gpu + 1))
    outline(context, scene, view, gpu, 1.5);
}

export function outline(
  context: CanvasRenderingContext2D,
  scene: Scene,
  view: View,
  gpu: number,
  width: number,
): void {
  const [px, py] = placeOf(scene.layout, nodeOf(scene.layout, gpu), gpu);
  const size = Math.max(6, PITCH * view.scale);
  context.strokeStyle = scene.ink;
  context.lineWidth = width;
  context.strokeRect(
    (px + view.x) * view.scale - 1,
    (py + view.y) * view.scale - 1,
    size + 1,
    size + 1,
  );
}
