// Paint the map. When data changes, the whole fleet is painted into one bitmap with a few pixels per
// GPU; a frame is one scaled copy of it. When cells are large enough, the visible ones are drawn
// individually with islands and marks instead.
import type { GpuMap } from "../api/types";
import {
  css,
  inferno,
  parseHex,
  themeColour,
  viridis,
  type Rgb,
  type Scale,
} from "../charts/colours";
import { placeOf, PITCH, ROW, type Layout } from "./layout";

export type Quantity = "utilization" | "temperature" | "power" | "memory";

export const BROKEN = "#ff5d73";
export const DRAINING = "#e8a33d";
/** Cell width on screen from which cells are drawn individually. */
export const CLOSE = 9;
/** Cell size from which corners are rounded. */
const ROUND = 14;

export interface Palette {
  scale: Scale;
  low: number;
  high: number;
  free: Rgb;
  none: Rgb;
  plate: string;
  text: string;
}

export function paletteOf(map: GpuMap): Palette {
  const warm = map.quantity === "temperature" || map.quantity === "power";
  const low = map.quantity === "temperature" ? 25 : 0;
  let high = map.quantity === "temperature" ? 90 : 100;
  if (map.quantity === "power") {
    high = 100;
    for (const value of map.values) if (value !== null && value > high) high = value;
    high = Math.ceil(high / 100) * 100;
  }
  return {
    scale: warm ? inferno : viridis,
    low,
    high,
    free: parseHex(themeColour("--heat-free")),
    none: parseHex(themeColour("--heat-none")),
    plate: themeColour("--heat-plate"),
    text: themeColour("--muted"),
  };
}

type State = "broken" | "draining" | "free" | "none";

/** Return the colour of a GPU: a position on the scale, or a state that has a colour of its own. */
export function rateOf(map: GpuMap, gpu: number, palette: Palette): number | State {
  const mark = map.marks[gpu];
  if (mark === "x") return "broken";
  if (mark === "d") return "draining";
  const value = map.values[gpu];
  if (
    map.quantity === "utilization" &&
    mark !== "h" &&
    mark !== "p" &&
    (value == null || value < 5)
  )
    return "free";
  if (value == null) return "none";
  return (value - palette.low) / (palette.high - palette.low);
}

function colourOf(rate: number | State, palette: Palette): Rgb {
  if (rate === "broken") return parseHex(BROKEN);
  if (rate === "draining") return parseHex(DRAINING);
  if (rate === "free") return palette.free;
  return rate === "none" ? palette.none : palette.scale(rate);
}

/** Paint the map as pixels. */
export function paintBitmap(map: GpuMap, layout: Layout, palette: Palette): ImageData {
  const image = new ImageData(layout.width, layout.height);
  const pixels = new Uint32Array(image.data.buffer);
  const steps = Array.from({ length: 101 }, (_, step) => packed(palette.scale(step / 100)));
  const states = {
    broken: packed(parseHex(BROKEN)),
    draining: packed(parseHex(DRAINING)),
    free: packed(palette.free),
    none: packed(palette.none),
  };
  for (let node = 0; node < layout.x.length; node++) {
    const end = layout.first[node + 1] as number;
    for (let gpu = layout.first[node] as number; gpu < end; gpu++) {
      const rate = rateOf(map, gpu, palette);
      const colour =
        typeof rate === "number"
          ? (steps[Math.round(Math.min(1, Math.max(0, rate)) * 100)] as number)
          : states[rate];
      const [x, y] = placeOf(layout, node, gpu);
      const start = y * layout.width + x;
      for (let line = 0; line < PITCH - 1; line++) {
        pixels.fill(colour, start + line * layout.width, start + line * layout.width + PITCH - 1);
      }
    }
  }
  return image;
}

function packed([red, green, blue]: Rgb): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** The viewport: screen = (bitmap + offset) * scale. */
export interface View {
  scale: number;
  x: number;
  y: number;
}

export function drawFar(
  context: CanvasRenderingContext2D,
  bitmap: CanvasImageSource,
  layout: Layout,
  view: View,
): void {
  context.imageSmoothingEnabled = view.scale < 1;
  context.imageSmoothingQuality = "low";
  context.drawImage(
    bitmap,
    view.x * view.scale,
    view.y * view.scale,
    layout.width * view.scale,
    layout.height * view.scale,
  );
}

export function drawClose(
  context: CanvasRenderingContext2D,
  map: GpuMap,
  layout: Layout,
  palette: Palette,
  view: View,
  width: number,
  height: number,
): void {
  const firstRow = Math.max(0, Math.floor(-view.y / ROW));
  const lastRow = Math.min(
    layout.rows.length - 2,
    Math.floor((height / view.scale - view.y) / ROW),
  );
  const cell = (PITCH - 0.55) * view.scale;
  const round = Math.min(4, cell / 5);
  for (let row = firstRow; row <= lastRow; row++) {
    for (let node = layout.rows[row] as number; node < (layout.rows[row + 1] as number); node++) {
      const left = ((layout.x[node] as number) + view.x) * view.scale;
      const wide = (layout.columns[node] as number) * PITCH * view.scale;
      if (left > width || left + wide < 0) continue;
      drawIslands(context, map, layout, palette, view, node);
      for (
        let gpu = layout.first[node] as number;
        gpu < (layout.first[node + 1] as number);
        gpu++
      ) {
        const [px, py] = placeOf(layout, node, gpu);
        const x = (px + view.x + 0.28) * view.scale;
        const y = (py + view.y + 0.28) * view.scale;
        const rate = rateOf(map, gpu, palette);
        context.fillStyle = css(colourOf(rate, palette));
        if (cell < ROUND) context.fillRect(x, y, cell, cell);
        else {
          context.beginPath();
          context.roundRect(x, y, cell, cell, round);
          context.fill();
        }
        if (rate === "broken") drawCross(context, x, y, cell);
        else if (map.marks[gpu] === "c") drawBar(context, palette, x, y, cell);
      }
      if (wide > 64)
        drawName(
          context,
          map.nodes[node] ?? "",
          palette,
          left,
          ((layout.y[node] as number) + 2 * PITCH + view.y) * view.scale,
          wide,
          view,
        );
    }
  }
}

/** Draw the background of a node, split where the island changes between its two rows. */
function drawIslands(
  context: CanvasRenderingContext2D,
  map: GpuMap,
  layout: Layout,
  palette: Palette,
  view: View,
  node: number,
): void {
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
  context.fillStyle = palette.plate;
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

function drawBar(
  context: CanvasRenderingContext2D,
  palette: Palette,
  x: number,
  y: number,
  cell: number,
): void {
  context.strokeStyle = palette.text;
  context.lineWidth = Math.max(1, cell / 12);
  context.beginPath();
  context.moveTo(x + cell * 0.3, y + cell / 2);
  context.lineTo(x + cell * 0.7, y + cell / 2);
  context.stroke();
}

function drawName(
  context: CanvasRenderingContext2D,
  name: string,
  palette: Palette,
  x: number,
  y: number,
  wide: number,
  view: View,
): void {
  const size = Math.min(12, 2.6 * view.scale);
  if (size < 8) return;
  context.fillStyle = palette.text;
  context.font = `500 ${size}px "Geist Variable", sans-serif`;
  const room = Math.floor(wide / (size * 0.56));
  context.fillText(
    name.length > room ? `…${name.slice(1 - room)}` : name,
    x,
    y + 0.6 * view.scale + size,
  );
}
