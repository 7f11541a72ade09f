// The map of all GPUs: a canvas with pan and zoom by mouse, touch and keyboard.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { GpuMap } from "../api/types";
import { css } from "../charts/colours";
import { link } from "../state/route";
import { useSession } from "../state/session";
import { shortModel } from "../ui/format";
import { Icon } from "../ui/icons";
import { gpuAt, layOut, nodeOf, placeOf, PITCH, ROW, scaleFor, type Layout } from "./layout";
import { pinchOf, type Point } from "./pinch";
import {
  BROKEN,
  CLOSE,
  DRAINING,
  drawClose,
  drawFar,
  paintBitmap,
  paletteOf,
  type Palette,
  type View,
} from "./paint";

const LARGEST_CELL = 44;
/** Maximum initial cell size. */
const LARGEST_FIT = 21;
const HEIGHT = 420;
const MARKS: Record<string, string> = {
  f: "free",
  h: "allocated",
  p: "allocated or free, not known which",
  x: "unhealthy",
  c: "cordoned",
  u: "health unknown",
  d: "draining: a deleted pod still has processes on it",
};

interface Hover {
  gpu: number;
  x: number;
  y: number;
}

export function HeatMap(props: { map: GpuMap }) {
  const { map } = props;
  const { theme } = useSession();
  const canvas = useRef<HTMLCanvasElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [hover, setHover] = useState<Hover | null>(null);
  const [cursor, setCursor] = useState(-1);
  const view = useRef<View>({ scale: 1, x: 0, y: 0 });
  const drawing = useRef(0);
  const total = map.values.length;

  const shape = map.counts.join();
  const layout = useMemo(() => {
    const scale = scaleFor(map.counts, width || 1000, HEIGHT, LARGEST_FIT / PITCH);
    return layOut(map.counts, (width || 1000) / scale);
  }, [shape, width]);
  const fit = width ? Math.min(width / layout.width, LARGEST_CELL / PITCH) : 1;
  const height = Math.round(layout.height * fit);
  const palette = useMemo(() => paletteOf(map), [map, theme]);
  const bitmap = useMemo(
    () => (width ? bitmapOf(map, layout, palette) : null),
    [map, layout, palette, width > 0],
  );

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const resize = new ResizeObserver(() => setWidth(element.clientWidth));
    resize.observe(element);
    return () => resize.disconnect();
  }, []);

  useEffect(() => {
    view.current = { scale: fit, x: 0, y: 0 };
  }, [layout, fit]);

  const draw = () => {
    cancelAnimationFrame(drawing.current);
    drawing.current = requestAnimationFrame(() => {
      const context = canvas.current?.getContext("2d");
      if (!context || !bitmap) return;
      const ratio = devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      if (view.current.scale * PITCH < CLOSE) drawFar(context, bitmap, layout, view.current);
      else drawClose(context, map, layout, palette, view.current, width, height);
      const marked = cursor >= 0 ? cursor : (hover?.gpu ?? -1);
      if (marked >= 0) outline(context, layout, view.current, marked, theme);
      context.canvas.dataset.drawn = String(map.takenAt);
      context.canvas.dataset.zoom = (view.current.scale / fit).toFixed(2);
    });
  };
  useEffect(draw, [bitmap, width, height, hover?.gpu, cursor, layout, fit]);

  const move = (change: (view: View) => View) => {
    view.current = bounded(change(view.current), layout, width, height, fit);
    setHover(null);
    draw();
  };
  const zoom = (factor: number, px = width / 2, py = height / 2) =>
    move((old) => {
      const scale = Math.min(LARGEST_CELL / PITCH, Math.max(fit, old.scale * factor));
      return {
        scale,
        x: old.x + px / scale - px / old.scale,
        y: old.y + py / scale - py / old.scale,
      };
    });

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const wheel = (event: WheelEvent) => {
      // Scrolling the page must not zoom the map: zooming needs Ctrl or a focused map.
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== element) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    };
    // One finger scrolls the page unless the map is zoomed; two fingers zoom the map.
    const touch = (event: TouchEvent) => {
      if (event.touches.length > 1 || view.current.scale > fit * 1.01) event.preventDefault();
    };
    element.addEventListener("wheel", wheel, { passive: false });
    element.addEventListener("touchstart", touch, { passive: false });
    return () => {
      element.removeEventListener("wheel", wheel);
      element.removeEventListener("touchstart", touch);
    };
  });

  const drag = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  const fingers = useRef(new Map<number, Point>()).current;
  const at = (event: PointerEvent) =>
    gpuAt(
      layout,
      event.offsetX / view.current.scale - view.current.x,
      event.offsetY / view.current.scale - view.current.y,
    );
  const open = (gpu: number) => {
    const name = map.nodes[nodeOf(layout, gpu)];
    if (name) location.hash = link(["nodes", name], { gpu: String(map.indexes[gpu]) });
  };

  const onDown = (event: PointerEvent) => {
    fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    drag.current = { x: event.offsetX, y: event.offsetY, moved: fingers.size > 1 };
    canvas.current?.setPointerCapture(event.pointerId);
  };

  const onUp = (event: PointerEvent) => {
    const gpu = drag.current && !drag.current.moved && fingers.size === 1 ? at(event) : -1;
    fingers.delete(event.pointerId);
    const left = [...fingers.values()][0];
    drag.current = left ? { ...left, moved: true } : null; // the remaining finger of a pinch continues to pan
    if (gpu >= 0) open(gpu);
  };

  /** Zoom around the midpoint of two fingers and pan with it. */
  const pinch = (event: PointerEvent) => {
    const before = [...fingers.values()] as [Point, Point];
    fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    const { factor, middle, moved } = pinchOf(before, [...fingers.values()] as [Point, Point]);
    move((old) => ({ ...old, x: old.x + moved.x / old.scale, y: old.y + moved.y / old.scale }));
    zoom(factor, middle.x, middle.y);
  };

  const onMove = (event: PointerEvent) => {
    if (fingers.size === 2 && fingers.has(event.pointerId)) return pinch(event);
    const held = drag.current;
    if (held) {
      const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
      if (!held.moved && Math.abs(dx) + Math.abs(dy) < 5) return;
      drag.current = { x: event.offsetX, y: event.offsetY, moved: true };
      move((old) => ({ ...old, x: old.x + dx / old.scale, y: old.y + dy / old.scale }));
      return;
    }
    const gpu = at(event);
    setHover(gpu < 0 ? null : { gpu, x: event.offsetX, y: event.offsetY });
  };

  const onKey = (event: KeyboardEvent) => {
    const next = steered(event.key, cursor, layout, total);
    if (next !== null) {
      event.preventDefault();
      setCursor(next);
      move((old) => inSight(old, layout, next, width, height));
    } else if (event.key === "Enter" && cursor >= 0) open(cursor);
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") move(() => ({ scale: fit, x: 0, y: 0 }));
  };

  const shown = cursor >= 0 ? cursor : (hover?.gpu ?? -1);
  return (
    <div class="heat" ref={box}>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`Map of ${total.toLocaleString("en")} GPUs by ${map.quantity}. Arrow keys move, Enter opens a GPU, plus and minus zoom.`}
        width={Math.round(width * (devicePixelRatio || 1))}
        height={Math.round(height * (devicePixelRatio || 1))}
        style={{ height: `${height}px` }}
        data-total={total}
        onPointerDown={onDown}
        onPointerMove={onMove}
        onPointerUp={onUp}
        onPointerCancel={(event) => {
          fingers.delete(event.pointerId);
          drag.current = null;
        }}
        onPointerLeave={() => setHover(null)}
        onKeyDown={onKey}
        onBlur={() => setCursor(-1)}
      />
      <p class="sr" aria-live="polite">
        {cursor >= 0 ? sentence(map, layout, cursor) : ""}
      </p>
      {shown >= 0 && (
        <Tip
          map={map}
          layout={layout}
          gpu={shown}
          {...tipPlace(hover, layout, view.current, shown, width)}
        />
      )}
      <div class="heat-tools">
        <button class="button icon" aria-label="Zoom in" onClick={() => zoom(1.6)}>
          +
        </button>
        <button class="button icon" aria-label="Zoom out" onClick={() => zoom(1 / 1.6)}>
          −
        </button>
        <button
          class="button icon"
          aria-label="Show all"
          onClick={() => move(() => ({ scale: fit, x: 0, y: 0 }))}
        >
          <Icon name="reset" />
        </button>
      </div>
      <Legend map={map} palette={palette} />
    </div>
  );
}

function bitmapOf(map: GpuMap, layout: Layout, palette: Palette): OffscreenCanvas {
  const made = new OffscreenCanvas(layout.width, layout.height);
  made.getContext("2d")?.putImageData(paintBitmap(map, layout, palette), 0, 0);
  return made;
}

function bounded(view: View, layout: Layout, width: number, height: number, fit: number): View {
  const scale = Math.max(fit, view.scale);
  const keep = (offset: number, inner: number, outer: number) =>
    inner * scale <= outer ? 0 : Math.min(0, Math.max(outer / scale - inner, offset));
  return { scale, x: keep(view.x, layout.width, width), y: keep(view.y, layout.height, height) };
}

function inSight(view: View, layout: Layout, gpu: number, width: number, height: number): View {
  const [px, py] = placeOf(layout, nodeOf(layout, gpu), gpu);
  const x = Math.min(Math.max(view.x, -px), width / view.scale - px - PITCH);
  const y = Math.min(Math.max(view.y, -py), height / view.scale - py - PITCH);
  return { ...view, x, y };
}

function steered(key: string, cursor: number, layout: Layout, total: number): number | null {
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key) || !total) return null;
  if (cursor < 0) return 0;
  if (key === "ArrowLeft") return Math.max(0, cursor - 1);
  if (key === "ArrowRight") return Math.min(total - 1, cursor + 1);
  const [px, py] = placeOf(layout, nodeOf(layout, cursor), cursor);
  const inBlock = (py % ROW) / PITCH;
  const step =
    key === "ArrowDown" ? (inBlock < 1 ? PITCH : ROW - PITCH) : inBlock < 1 ? PITCH - ROW : -PITCH;
  const found = gpuAt(layout, px + 1, py + step + 1);
  return found < 0 ? cursor : found;
}

function outline(
  context: CanvasRenderingContext2D,
  layout: Layout,
  view: View,
  gpu: number,
  theme: string,
): void {
  const [px, py] = placeOf(layout, nodeOf(layout, gpu), gpu);
  const size = Math.max(6, PITCH * view.scale);
  context.strokeStyle = theme === "dark" ? "#ffffff" : "#000000";
  context.lineWidth = 2;
  context.strokeRect(
    (px + view.x) * view.scale - 1,
    (py + view.y) * view.scale - 1,
    size + 1,
    size + 1,
  );
}

function sentence(map: GpuMap, layout: Layout, gpu: number): string {
  const value = map.values[gpu];
  const reading = value == null ? "no reading" : `${value} ${map.unit}`;
  return `${map.nodes[nodeOf(layout, gpu)]}, GPU ${map.indexes[gpu]}: ${reading}, ${MARKS[map.marks[gpu] ?? ""] ?? ""}`;
}

function tipPlace(hover: Hover | null, layout: Layout, view: View, gpu: number, width: number) {
  const [px, py] = placeOf(layout, nodeOf(layout, gpu), gpu);
  const x = hover?.x ?? (px + view.x + PITCH) * view.scale;
  const y = hover?.y ?? (py + view.y + PITCH) * view.scale;
  return { x: Math.min(Math.max(8, x + 14), Math.max(8, width - 230)), y: y + 16 };
}

function Tip(props: { map: GpuMap; layout: Layout; gpu: number; x: number; y: number }) {
  const { map, layout, gpu } = props;
  const node = nodeOf(layout, gpu);
  const value = map.values[gpu];
  const island = map.islands[gpu];
  return (
    <div class="tip" style={{ transform: `translate(${props.x}px, ${props.y}px)` }}>
      <p class="tip-title">
        {map.nodes[node]} <span class="muted">GPU {map.indexes[gpu]}</span>
      </p>
      <p class="tip-value num">
        {value == null ? "no reading" : `${value} ${map.unit}`}{" "}
        <span class="muted">{map.quantity}</span>
      </p>
      <p class="muted small">
        {MARKS[map.marks[gpu] ?? ""]} · {shortModel(map.models[map.modelOf[node] ?? 0] ?? "")}
        {island !== "-" && ` · island ${island}`}
      </p>
    </div>
  );
}

function Legend(props: { map: GpuMap; palette: Palette }) {
  const { map, palette } = props;
  const steps = 24;
  return (
    <div class="heat-legend small muted">
      <span class="num">{palette.low}</span>
      <span class="ramp" aria-hidden="true">
        {Array.from({ length: steps }, (_, step) => (
          <span key={step} style={{ background: css(palette.scale(step / (steps - 1))) }} />
        ))}
      </span>
      <span class="num">
        {palette.high} {map.unit}
      </span>
      <span class="spacer" />
      {map.quantity === "utilization" && (
        <span class="key">
          <span class="swatch" style={{ background: css(palette.free) }} /> free
        </span>
      )}
      <span class="key">
        <span class="swatch" style={{ background: BROKEN }} /> unhealthy
      </span>
      {map.marks.includes("d") && (
        <span class="key">
          <span class="swatch" style={{ background: DRAINING }} /> draining
        </span>
      )}
      <span class="key">
        <span class="swatch hollow" style={{ background: css(palette.none) }} /> no reading
      </span>
    </div>
  );
}
