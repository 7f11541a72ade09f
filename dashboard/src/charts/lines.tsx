// Lines, stacked areas or bars over time, drawn by uPlot, with a readout at the cursor, a legend that
// hides and shows lines, and the values as a table.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { t } from "../i18n/text";
import { useSession } from "../state/session";
import { saveCsv, savePng } from "../ui/export";
import { moment, short, weekday } from "../ui/format";
import {
  align,
  lastPlace,
  limitOf,
  nearest,
  stack,
  statisticsOf,
  type Line,
  type Overlay,
} from "./align";
import { lineColours, themeColour } from "./colours";
import { pictureOf } from "./picture";
import { HEIGHT, plotOptions, type Format, type Shape } from "./plot";

const MOST_NAMED = 12;
/** More lines have their mean and maximum only in the table. */
const MOST_DETAILED = 4;
const MOST_READ = 8;
const MOST_ROWS = 64;
const DAY = 86_400;
const QUIET = { dark: "#39424f", light: "#c9d0da" };

/** About the width of A4 between its margins, so that labels are legible. */
const PAPER_WIDTH = 670;
const NO_OVERLAYS: readonly Overlay[] = [];

interface Props extends Shape {
  lines: readonly Line[];
  /** Lines on top that are not stacked. */
  overlays?: readonly Overlay[];
  /** The colours of lines by name; distinct ones by default. */
  colours?: ReadonlyMap<string, string>;
  label: string;
  /** Expected seconds between two points: longer pauses are gaps. */
  step?: number;
  /** Called with a range in seconds when somebody drags over the chart. */
  onZoom?: (from: number, to: number) => void;
}

interface Cursor {
  time: number;
  left: number;
}

export function Lines(props: Props) {
  const { theme, zone, printing } = useSession();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const zoom = useRef(props.onZoom);
  zoom.current = props.onZoom;
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const format = props.format ?? short;
  const overlays = props.overlays ?? NO_OVERLAYS;
  const all: readonly Line[] = useMemo(
    () => [...props.lines, ...overlays],
    [props.lines, overlays],
  );
  const own = props.lines.length;
  const { times, values } = useMemo(() => align(all, props.step), [all, props.step]);
  const drawn = useMemo(() => {
    const shown = values.map((column, place) =>
      hidden.has(all[place]?.name ?? "") ? column.map(() => null) : column,
    );
    return props.stacked ? [...stack(shown.slice(0, own)), ...shown.slice(own)] : shown;
  }, [values, props.stacked, hidden]);
  const lineColour = lineColours(own, theme).map((colour, place) => {
    const line = props.lines[place];
    return line?.quiet ? QUIET[theme] : (props.colours?.get(line?.name ?? "") ?? colour);
  });
  const colours = [...lineColour, ...overlays.map((overlay) => themeColour(overlay.colour))];
  const names = all.map((line) => line.name).join("\n");
  const shape = `${names} ${props.stacked} ${props.bars} ${theme} ${zone} ${props.height} ${props.from} ${props.to} ${printing}`;

  // A layout effect: the page is printed before other effects have run.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const handlers = {
      onCursor: setCursor,
      onZoom: zoom.current && ((from: number, to: number) => zoom.current?.(from, to)),
    };
    const made = new uPlot(
      plotOptions(
        props,
        printing ? PAPER_WIDTH : element.clientWidth,
        lineColour,
        format,
        handlers,
        overlays,
      ),
      columnsOf(times, drawn, own, props.stacked) as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    const resize = new ResizeObserver(() =>
      made.setSize({ width: element.clientWidth, height: props.height ?? HEIGHT }),
    );
    resize.observe(element);
    return () => {
      resize.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(columnsOf(times, drawn, own, props.stacked) as uPlot.AlignedData);
  }, [times, drawn]);

  const room = roomOf(props);
  const place = cursor
    ? nearest(times, cursor.time, room)
    : lastPlace(own ? values.slice(0, own) : values, times.length);
  const seconds = place === null ? cursor?.time : times[place];
  const toggle = (name: string) =>
    setHidden((old) => {
      const next = new Set(old);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  const valueOf = (index: number) => {
    const limit = index < own ? null : limitOf(all[index] as Line);
    // Runs that are compared end at different places.
    if (!cursor && props.position) return statisticsOf(values[index] ?? []).last;
    return limit ?? (place === null ? null : values[index]?.[place]);
  };
  const titleOf = (at: number) => (props.bars ? weekday(at * 1000, zone) : moment(at * 1000, zone));
  const position = props.position ?? titleOf;
  const saveTable = () =>
    saveCsv(props.label, [
      ["time", ...all.map((line) => line.name)],
      ...times.map((at, row) => [
        new Date(at * 1000).toISOString(),
        ...values.map((column) => column[row] ?? null),
      ]),
    ]);
  const savePicture = () => {
    const canvas = plot.current?.ctx.canvas;
    const keys = all.map((line, index) => ({ name: line.name, colour: colours[index] ?? "" }));
    if (canvas) savePng(props.label, pictureOf(canvas, props.label, keys));
  };
  return (
    <figure class="chart" aria-label={props.label}>
      <div class={`chart-box ${props.onZoom ? "zoomable" : ""}`} ref={box} />
      {cursor && seconds !== undefined && (
        <Readout
          left={cursor.left}
          width={box.current?.clientWidth ?? 0}
          title={position(seconds)}
          rows={all.flatMap((line, index) => {
            const value = valueOf(index);
            return value == null || hidden.has(line.name)
              ? []
              : [{ name: line.name, value, colour: colours[index] ?? "" }];
          })}
          format={format}
        />
      )}
      <figcaption class="legend">
        {seconds !== undefined && <span class="muted num">{position(seconds)}</span>}
        {all.length <= MOST_NAMED ? (
          all.map((line, index) => (
            <button
              type="button"
              class="key"
              key={line.name}
              aria-pressed={!hidden.has(line.name)}
              title={hidden.has(line.name) ? t("Show this line") : t("Hide this line")}
              onClick={() => toggle(line.name)}
            >
              <span
                class={`swatch ${overlays[index - own]?.band ? "band" : ""}`}
                style={{ background: colours[index] ?? "" }}
              />
              {line.name}{" "}
              {(cursor || valueOf(index) != null) && (
                <b class="num">{written(valueOf(index), format)}</b>
              )}
              {all.length <= MOST_DETAILED && limitOf(line) === null && (
                <Statistics values={values[index] ?? []} format={format} />
              )}
            </button>
          ))
        ) : (
          <Many values={values} place={place} format={format} />
        )}
        <span class="chart-tools">
          <button type="button" class="linkish small" onClick={saveTable}>
            CSV
          </button>
          <button type="button" class="linkish small" onClick={savePicture}>
            PNG
          </button>
        </span>
      </figcaption>
      <Values lines={all} values={values} format={format} />
    </figure>
  );
}

/** Return how far from the cursor a point may be, in seconds, to be read out. */
function roomOf(props: Props): number {
  if (props.step) return 1.5 * props.step;
  return props.from !== undefined && props.to !== undefined
    ? Math.max(props.bars ? DAY : 0, (props.to - props.from) / 40)
    : Infinity;
}

interface ReadoutRow {
  name: string;
  value: number;
  colour: string;
}

/** The values at the cursor, the largest first. */
function Readout(props: {
  left: number;
  width: number;
  title: string;
  rows: ReadoutRow[];
  format: Format;
}) {
  const rows = [...props.rows].sort((a, b) => b.value - a.value);
  const right = props.left > props.width / 2;
  const side = right
    ? { right: `${props.width - props.left + 12}px` }
    : { left: `${props.left + 12}px` };
  return (
    <div class="readout" style={side} aria-hidden="true">
      <p class="muted num">{props.title}</p>
      {rows.slice(0, MOST_READ).map((row) => (
        <p key={row.name}>
          <span class="swatch" style={{ background: row.colour }} /> {row.name}{" "}
          <b class="num">{props.format(row.value)}</b>
        </p>
      ))}
      {rows.length > MOST_READ && (
        <p class="muted">{t("and {more} more", { more: rows.length - MOST_READ })}</p>
      )}
      {!rows.length && <p class="muted">{t("no reading")}</p>}
    </div>
  );
}

function Statistics(props: { values: readonly (number | null)[]; format: Format }) {
  const { mean, max } = statisticsOf(props.values);
  if (mean === null || max === null) return null;
  return (
    <span class="muted num">
      {t("mean {mean}, max {max}", { mean: props.format(mean), max: props.format(max) })}
    </span>
  );
}

function Many(props: { values: (number | null)[][]; place: number | null; format: Format }) {
  const now = props.values
    .map((column) => (props.place === null ? null : column[props.place]))
    .filter((value): value is number => value != null);
  const lines = t("{n} lines", { n: props.values.length });
  if (!now.length) return <span class="muted">{lines}</span>;
  const mean = now.reduce((sum, value) => sum + value, 0) / now.length;
  return (
    <>
      <span class="muted">{lines}</span>
      <span>
        {t("lowest")} <b class="num">{props.format(Math.min(...now))}</b>
      </span>
      <span>
        {t("mean")} <b class="num">{props.format(mean)}</b>
      </span>
      <span>
        {t("highest")} <b class="num">{props.format(Math.max(...now))}</b>
      </span>
    </>
  );
}

/** Last, mean and highest value of each line, for readers of tables and of screens. */
function Values(props: { lines: readonly Line[]; values: (number | null)[][]; format: Format }) {
  const [open, setOpen] = useState(false);
  if (!props.lines.length) return null;
  return (
    <details class="chart-values" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary class="muted small">{t("Last, mean and max")}</summary>
      {open && (
        <table>
          <thead>
            <tr>
              <th>{t("Line")}</th>
              <th class="right">{t("Last")}</th>
              <th class="right">{t("Mean")}</th>
              <th class="right">{t("Max")}</th>
            </tr>
          </thead>
          <tbody>
            {props.lines.slice(0, MOST_ROWS).map((line, place) => {
              const { last, mean, max } = statisticsOf(props.values[place] ?? []);
              return (
                <tr key={line.name}>
                  <td>{line.name}</td>
                  <td class="right">{written(last, props.format)}</td>
                  <td class="right">{written(mean, props.format)}</td>
                  <td class="right">{written(max, props.format)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      )}
    </details>
  );
}

function written(value: number | null | undefined, format: Format): string {
  return value == null ? "–" : format(value);
}

/** Paint stacked areas from the top down, so that each covers its own part. */
function columnsOf(
  times: number[],
  drawn: (number | null)[][],
  own: number,
  stacked = false,
): unknown[] {
  if (!stacked) return [times, ...drawn];
  return [times, ...drawn.slice(0, own).reverse(), ...drawn.slice(own)];
}
