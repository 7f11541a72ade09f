// A treemap: one tile for each item, its area proportional to the value. Items that can be opened are buttons.
import { useEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n/text";
import { saveCsv, savePng } from "../ui/export";
import { percent } from "../ui/format";
import { themeColour } from "./colours";
import { emptyCanvas } from "./picture";
import { squarify, type Tile } from "./squarify";

const HEIGHT = 240;
/** Smaller tiles have no text. */
const LEAST = { width: 56, height: 30 };

export interface TreeItem {
  name: string;
  value: number;
  colour: string;
  open?: (() => void) | undefined;
}

export function Treemap(props: {
  label: string;
  items: readonly TreeItem[];
  format: (value: number) => string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setWidth(element.clientWidth || 800);
    const resize = new ResizeObserver(measure);
    resize.observe(element);
    measure();
    return () => resize.disconnect();
  }, []);
  const tiles = squarify(props.items, (item) => item.value, width / HEIGHT);
  const total = props.items.reduce((sum, item) => sum + item.value, 0);
  const textOf = (item: TreeItem) =>
    t("{name}: {value}, {share}", {
      name: item.name,
      value: props.format(item.value),
      share: percent(item.value / (total || 1), 1),
    });
  const saveTable = () =>
    saveCsv(props.label, [
      ["name", "value"],
      ...props.items.map((item) => [item.name, item.value]),
    ]);
  return (
    <figure class="treemap" aria-label={props.label}>
      <div class="treemap-box" ref={box} style={{ height: `${HEIGHT}px` }}>
        {tiles.map((tile) => (
          <TileBox
            key={tile.item.name}
            tile={tile}
            text={textOf(tile.item)}
            value={props.format(tile.item.value)}
            roomy={tile.width * width >= LEAST.width && tile.height * HEIGHT >= LEAST.height}
          />
        ))}
      </div>
      <figcaption class="legend">
        <span class="chart-tools">
          <button type="button" class="linkish small" onClick={saveTable}>
            CSV
          </button>
          <button
            type="button"
            class="linkish small"
            onClick={() => savePng(props.label, paint(tiles, width, props.format))}
          >
            PNG
          </button>
        </span>
      </figcaption>
    </figure>
  );
}

function TileBox(props: { tile: Tile<TreeItem>; text: string; value: string; roomy: boolean }) {
  const { item, left, top, width, height } = props.tile;
  const style = {
    left: `${left * 100}%`,
    top: `${top * 100}%`,
    width: `${width * 100}%`,
    height: `${height * 100}%`,
    background: item.colour,
  };
  const name = props.roomy ? "tile" : "tile tiny";
  const inside = props.roomy && (
    <>
      <span>{item.name}</span>
      <b class="num">{props.value}</b>
    </>
  );
  return item.open ? (
    <button
      type="button"
      class={name}
      style={style}
      title={props.text}
      aria-label={props.text}
      onClick={item.open}
    >
      {inside}
    </button>
  ) : (
    <div class={name} role="img" style={style} title={props.text} aria-label={props.text}>
      {inside}
    </div>
  );
}

function paint(
  tiles: readonly Tile<TreeItem>[],
  width: number,
  format: (value: number) => string,
): HTMLCanvasElement {
  const canvas = emptyCanvas(width, HEIGHT);
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  for (const { item, left, top, width: wide, height: high } of tiles) {
    const [x, y, w, h] = [left * width, top * HEIGHT, wide * width, high * HEIGHT];
    context.fillStyle = item.colour;
    context.fillRect(x, y, w, h);
    context.strokeStyle = themeColour("--panel");
    context.strokeRect(x, y, w, h);
    if (w < LEAST.width || h < LEAST.height) continue;
    context.fillStyle = "#07101f";
    context.fillText(item.name, x + 7, y + 12, w - 14);
    context.fillText(format(item.value), x + 7, y + 27, w - 14);
  }
  return canvas;
}
