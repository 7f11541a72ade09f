// The map of all GPUs: a canvas with pan and zoom by mouse, touch and keyboard.
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import type { GpuMap } from "../api/types";
import { quantityText } from "../i18n/states";
import { plural, t } from "../i18n/text";
import { useSession } from "../state/session";
import { Icon } from "../ui/icons";
import { arrange, find } from "./arrange";
import { colouringOf, isMetric, type ColourBy } from "./colouring";
import { gpuAt, layOut, nodeOf, PITCH, scaleFor } from "./layout";
import { Legend } from "./legend";
import {
  CLOSE,
  drawClose,
  drawFar,
  drawFound,
  drawHeadings,
  outline,
  paintBitmap,
  sceneOf,
} from "./paint";
import { pinchOf, type Point } from "./pinch";
import { saveMapPicture, saveMapTable } from "./save";
import { hrefOfGpu, hrefOfHolder, sentence, Tip } from "./tip";
import { bounded, inSight, onScreen, steered, zoomed, type View } from "./view";

const LARGEST_CELL = 44;
/** Maximum initial cell size. */
const LARGEST_FIT = 21;
const HEIGHT = 420;
const HEADING = 20;
/** Narrower maps show the details of a GPU below the map, where they cover nothing. */
const NARROW = 560;
/** Milliseconds for which the details stay, so that the pointer can reach their links. */
const LINGER = 220;
const TIP = { width: 250, height: 210 };

export function HeatMap(props: { map: GpuMap; colourBy: ColourBy; groupBy: string; text: string }) {
  const { colourBy, groupBy, text } = props;
  const { theme } = useSession();
  const canvas = useRef<HTMLCanvasElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [hover, setHover] = useState(-1);
  const [cursor, setCursor] = useState(-1);
  const [, moved] = useReducer((count: number) => count + 1, 0);
  const view = useRef<View>({ scale: 1, x: 0, y: 0 });
  const drawing = useRef(0);
  const lingering = useRef(0);

  const { map, sections } = useMemo(() => arrange(props.map, groupBy), [props.map, groupBy]);
  const total = map.values.length;
  const found = useMemo(() => find(map, text), [map, text]);
  const shape = `${map.counts.join()} ${sections.map((each) => each.first + each.name).join()}`;
  const layout = useMemo(() => {
    const scale = scaleFor(map.counts, width || 1000, HEIGHT, LARGEST_FIT / PITCH);
    return layOut(map.counts, (width || 1000) / scale, sections, Math.ceil(HEADING / scale));
  }, [shape, width]);
  const fit = width ? Math.min(width / layout.width, LARGEST_CELL / PITCH) : 1;
  const size = { width, height: Math.round(layout.height * fit) };
  const colouring = useMemo(() => colouringOf(map, colourBy), [map, colourBy, theme]);
  const scene = useMemo(
    () => sceneOf(map, layout, colouring, found),
    [map, layout, colouring, found],
  );
  const bitmap = useMemo(() => {
    if (!width) return null;
    const made = new OffscreenCanvas(layout.width, layout.height);
    made.getContext("2d")?.putImageData(paintBitmap(scene), 0, 0);
    return made;
  }, [scene, width > 0]);

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
  useEffect(() => {
    setCursor(-1);
    setHover(-1);
  }, [shape]);

  const shown = cursor >= 0 ? cursor : hover < total ? hover : -1;
  const draw = () => {
    cancelAnimationFrame(drawing.current);
    drawing.current = requestAnimationFrame(() => {
      const context = canvas.current?.getContext("2d");
      if (!context || !bitmap) return;
      const ratio = devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, size.width, size.height);
      if (view.current.scale * PITCH < CLOSE) drawFar(context, bitmap, scene, view.current);
      else drawClose(context, scene, view.current, size);
      drawHeadings(context, scene, view.current, size);
      drawFound(context, scene, view.current);
      if (shown >= 0) outline(context, scene, view.current, shown, 2);
      context.canvas.dataset.drawn = String(map.takenAt);
      context.canvas.dataset.zoom = (view.current.scale / fit).toFixed(2);
    });
  };
  useEffect(draw, [bitmap, size.width, size.height, shown, layout, fit]);

  const move = (change: (view: View) => View) => {
    view.current = bounded(change(view.current), layout, size, fit);
    moved(0);
    draw();
  };
  const zoom = (factor: number, px = size.width / 2, py = size.height / 2) =>
    move((old) => {
      const scale = Math.min(LARGEST_CELL / PITCH, Math.max(fit, old.scale * factor));
      return zoomed(old, scale, px, py);
    });
  /** Zoom around the selected GPU, or around the middle, and keep the GPU visible. */
  const zoomHere = (factor: number) => {
    if (cursor < 0) return zoom(factor);
    zoom(factor, ...onScreen(view.current, layout, cursor));
    move((old) => inSight(old, layout, cursor, size));
  };
  const showAll = () => move(() => ({ scale: fit, x: 0, y: 0 }));

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
    location.hash = hrefOfGpu(map, nodeOf(layout, gpu), gpu);
  };
  const show = (gpu: number, after = 0) => {
    clearTimeout(lingering.current);
    if (after) lingering.current = window.setTimeout(() => setHover(gpu), after);
    else setHover(gpu);
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
    if (gpu < 0) {
      if (event.pointerType === "touch") show(-1);
      return;
    }
    if (event.pointerType === "touch" && gpu !== shown)
      show(gpu); // the details have the links
    else open(gpu);
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
      show(-1);
      move((old) => ({ ...old, x: old.x + dx / old.scale, y: old.y + dy / old.scale }));
      return;
    }
    if (event.pointerType === "touch") return;
    const gpu = at(event);
    if (gpu === hover) clearTimeout(lingering.current);
    else show(gpu, hover < 0 ? 0 : gpu < 0 ? LINGER : LINGER / 2);
  };

  const onKey = (event: KeyboardEvent) => {
    const next = steered(event.key, cursor, layout, total);
    if (next !== null) {
      event.preventDefault();
      setCursor(next);
      move((old) => inSight(old, layout, next, size));
    } else if (event.key === "Enter" && cursor >= 0) open(cursor);
    else if (event.key === "w" && cursor >= 0) {
      const href = hrefOfHolder(map, nodeOf(layout, cursor), cursor);
      if (href) location.hash = href;
    } else if (event.key === "+" || event.key === "=") zoomHere(1.5);
    else if (event.key === "-") zoomHere(1 / 1.5);
    else if (event.key === "0") showAll();
    else if (event.key === "Escape") setCursor(-1);
  };

  const node = shown >= 0 ? nodeOf(layout, shown) : 0;
  return (
    <div
      class="heat"
      ref={box}
      onFocusOut={(event) => {
        if (!box.current?.contains(event.relatedTarget as Node | null)) setCursor(-1);
      }}
    >
      <div class="heat-tools">
        <span class="muted small" role="status">
          {found && plural(found.count, "{n} GPU matches", "{n} GPUs match")}
        </span>
        <button class="button icon" aria-label={t("Zoom in")} onClick={() => zoomHere(1.6)}>
          +
        </button>
        <button class="button icon" aria-label={t("Zoom out")} onClick={() => zoomHere(1 / 1.6)}>
          −
        </button>
        <button class="button icon" aria-label={t("Show all")} onClick={showAll}>
          <Icon name="reset" />
        </button>
      </div>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={t(
          "Map of {total} GPUs by {quantity}. Arrow keys move, Enter opens a GPU, W its workload, plus and minus zoom.",
          { total, quantity: quantityText(colourBy).toLowerCase() },
        )}
        width={Math.round(size.width * (devicePixelRatio || 1))}
        height={Math.round(size.height * (devicePixelRatio || 1))}
        style={{ height: `${size.height}px` }}
        data-total={total}
        data-groups={sections.length}
        data-found={found?.count}
        onPointerDown={onDown}
        onPointerMove={onMove}
        onPointerUp={onUp}
        onPointerCancel={(event) => {
          fingers.delete(event.pointerId);
          drag.current = null;
        }}
        onPointerLeave={(event) => event.pointerType !== "touch" && show(-1, LINGER)}
        onKeyDown={onKey}
      />
      <p class="sr" aria-live="polite">
        {cursor >= 0 ? sentence(map, node, cursor) : ""}
      </p>
      {shown >= 0 && (
        <Tip
          map={map}
          node={node}
          gpu={shown}
          at={
            width < NARROW
              ? null
              : tipPlace(
                  onScreen(view.current, layout, shown),
                  view.current,
                  size,
                  canvas.current?.offsetTop ?? 0,
                )
          }
          onEnter={() => clearTimeout(lingering.current)}
          onLeave={() => show(-1, LINGER)}
        />
      )}
      <div class="heat-foot">
        <Legend colouring={colouring} selectable={!isMetric(colourBy) && colourBy !== "health"} />
        <span class="chart-tools">
          <button type="button" class="linkish small" onClick={() => saveMapTable(map)}>
            CSV
          </button>
          <button
            type="button"
            class="linkish small"
            onClick={() =>
              canvas.current &&
              saveMapPicture(
                canvas.current,
                t("{title} by {group}", {
                  title: t("GPUs"),
                  group: quantityText(colourBy).toLowerCase(),
                }),
                colouring,
              )
            }
          >
            PNG
          </button>
        </span>
      </div>
    </div>
  );
}

/** Place the details beside a GPU, on the side with room, so that they do not cover it. */
function tipPlace(
  [x, y]: [number, number],
  view: View,
  size: { width: number; height: number },
  top: number,
): { x: number; y: number } {
  const half = (PITCH * view.scale) / 2;
  const right = x + half + 3 + TIP.width <= size.width;
  return {
    x: right ? x + half + 3 : Math.max(0, x - half - 3 - TIP.width),
    y: top + Math.max(0, Math.min(y - half, size.height - TIP.height)),
  };
}
