// Compose the picture of a chart: its title, the drawing and the legend on the background of the theme.
import { themeColour } from "./colours";

export interface Key {
  name: string;
  colour: string;
}

const ROW = 22;
const MARGIN = 14;
const FONT = 12;

/** Return a canvas with a title above a drawing and the legend below it. */
export function pictureOf(
  drawing: HTMLCanvasElement,
  title: string,
  keys: readonly Key[],
): HTMLCanvasElement {
  const scale = devicePixelRatio || 1;
  const width = Math.max(320, drawing.width / scale);
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const font = `${FONT}px ${themeColour("--sans")}`;
  context.font = font;
  const places = placeKeys(keys, width, (name) => context.measureText(name).width);
  const rows = (places.at(-1)?.row ?? 0) + 1;
  const top = ROW + MARGIN;
  const bottom = top + drawing.height / scale;
  canvas.width = (width + 2 * MARGIN) * scale;
  canvas.height = (bottom + rows * ROW + MARGIN) * scale;
  context.scale(scale, scale);
  context.fillStyle = themeColour("--panel");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = themeColour("--text");
  context.textBaseline = "middle";
  context.font = `600 ${FONT + 1}px ${themeColour("--sans")}`;
  context.fillText(title, MARGIN, MARGIN + 4);
  context.drawImage(drawing, MARGIN, top, drawing.width / scale, drawing.height / scale);
  context.font = font;
  for (const { key, x, row } of places) {
    const y = bottom + row * ROW + ROW / 2 + 4;
    context.fillStyle = key.colour;
    context.fillRect(MARGIN + x, y - 5, 10, 10);
    context.fillStyle = themeColour("--soft");
    context.fillText(key.name, MARGIN + x + 16, y);
  }
  return canvas;
}

/** Return where each key of a legend is drawn, in rows of some width. */
export function placeKeys(
  keys: readonly Key[],
  width: number,
  widthOf: (name: string) => number,
): { key: Key; x: number; row: number }[] {
  let [x, row] = [0, 0];
  return keys.map((key) => {
    const needed = widthOf(key.name) + 34;
    if (x > 0 && x + needed > width) [x, row] = [0, row + 1];
    const place = { key, x, row };
    x += needed;
    return place;
  });
}

/** Return a canvas of some size in CSS pixels with the background of the theme. */
export function emptyCanvas(width: number, height: number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const scale = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.scale(scale, scale);
  context.fillStyle = themeColour("--panel");
  context.fillRect(0, 0, width, height);
  context.font = `${FONT}px ${themeColour("--sans")}`;
  context.textBaseline = "middle";
  return canvas;
}
