// Lines or stacked areas over time, drawn by uPlot. Our own legend shows the values under the cursor
// and escapes names.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { session, useSession } from "../state/session";
import { moment, short, yearOf } from "../ui/format";
import { align, alone, stack, type Line } from "./align";
import { lineColours, themeColour } from "./colours";

const MOST_NAMED = 12;
const DAY = 86_400;
const QUIET = { dark: "#39424f", light: "#c9d0da" };

interface Props {
  lines: readonly Line[];
  label: string;
  height?: number;
  stacked?: boolean;
  /** Bars instead of areas, for daily sums. */
  bars?: boolean | undefined;
  format?: (value: number) => string;
  min?: number;
  max?: number;
  /** Range of the time axis in seconds; the range of the data by default. */
  from?: number;
  to?: number;
  /** Fit the value axis to the data instead of starting at zero. */
  loose?: boolean;
}

export function Lines(props: Props) {
  const { theme, zone } = useSession();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const format = props.format ?? short;
  const { times, values } = useMemo(() => align(props.lines), [props.lines]);
  const drawn = useMemo(() => (props.stacked ? stack(values) : values), [values, props.stacked]);
  const colours = lineColours(props.lines.length, theme).map((colour, place) =>
    props.lines[place]?.quiet ? QUIET[theme] : colour,
  );
  const shape = `${props.lines.map((line) => line.name).join("\n")} ${props.stacked} ${props.bars} ${theme} ${zone} ${props.height} ${props.from} ${props.to}`;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(
      options(props, element.clientWidth, colours, format, setAt),
      data(times, drawn, props.stacked) as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    const resize = new ResizeObserver(() =>
      made.setSize({ width: element.clientWidth, height: props.height ?? 220 }),
    );
    resize.observe(element);
    return () => {
      resize.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    plot.current?.setData(data(times, drawn, props.stacked) as uPlot.AlignedData);
  }, [times, drawn]);

  const place = at ?? times.length - 1;
  const seconds = times[place];
  return (
    <figure class="chart" aria-label={props.label}>
      <div class="chart-box" ref={box} />
      <figcaption class="legend">
        {seconds !== undefined && <span class="muted num">{moment(seconds * 1000, zone)}</span>}
        {props.lines.length <= MOST_NAMED ? (
          props.lines.map((line, index) => (
            <span class="key" key={line.name}>
              <span class="swatch" style={{ background: colours[index] ?? "" }} />
              {line.name} <b class="num">{written(values[index]?.[place], format)}</b>
            </span>
          ))
        ) : (
          <Many values={values} place={place} format={format} />
        )}
      </figcaption>
    </figure>
  );
}

function Many(props: {
  values: (number | null)[][];
  place: number;
  format: (value: number) => string;
}) {
  const now = props.values
    .map((column) => column[props.place])
    .filter((value): value is number => value != null);
  if (!now.length) return <span class="muted">{props.values.length} lines</span>;
  const mean = now.reduce((sum, value) => sum + value, 0) / now.length;
  return (
    <>
      <span class="muted">{props.values.length} lines</span>
      <span>
        lowest <b class="num">{props.format(Math.min(...now))}</b>
      </span>
      <span>
        mean <b class="num">{props.format(mean)}</b>
      </span>
      <span>
        highest <b class="num">{props.format(Math.max(...now))}</b>
      </span>
    </>
  );
}

function written(value: number | null | undefined, format: (value: number) => string): string {
  return value == null ? "–" : format(value);
}

/** Paint stacked areas from the top down, so that each covers its own part. */
function data(times: number[], drawn: (number | null)[][], stacked = false): unknown[] {
  return [times, ...(stacked ? [...drawn].reverse() : drawn)];
}

function options(
  props: Props,
  width: number,
  colours: string[],
  format: (value: number) => string,
  setAt: (at: number | null) => void,
): uPlot.Options {
  const axis = {
    stroke: themeColour("--muted"),
    font: `11px ${themeColour("--sans")}`,
    grid: { stroke: themeColour("--line"), width: 1 },
    ticks: { show: false },
  };
  const painted = props.stacked ? [...colours].reverse() : colours;
  return {
    width,
    height: props.height ?? 220,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    tzDate: (seconds) =>
      props.bars || session.zone === "UTC"
        ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC")
        : new Date(seconds * 1000),
    cursor: { points: { size: 6 }, y: false, drag: { x: false, y: false } },
    scales: {
      x: {
        range: (_plot, low, high) =>
          props.bars ? [low - DAY / 2, high + DAY / 2] : [props.from ?? low, props.to ?? high],
      },
      y: {
        range: (_plot, low, high) => {
          const room = ((high ?? 0) - (low ?? 0)) * 0.12 || Math.abs(high ?? 1) * 0.05 || 1;
          if (props.loose && low != null && high != null) return [low - room, high + room];
          return [
            props.min ?? Math.min(0, low ?? 0),
            props.max ?? (high == null || high <= 0 ? 1 : high * 1.06),
          ];
        },
      },
    },
    axes: [
      {
        ...axis,
        size: 28,
        gap: 6,
        grid: { show: false },
        values: (_plot, splits) => ticks(splits, props.bars),
        ...(props.bars ? { incrs: [1, 2, 3, 5, 7, 14, 30, 60, 90].map((days) => days * DAY) } : {}),
      },
      {
        ...axis,
        size: (_plot, words) => roomFor(words),
        values: (_plot, splits) => splits.map(format),
      },
    ],
    series: [
      {},
      ...painted.map((colour) => ({
        stroke: colour,
        width: props.stacked ? 1 : painted.length > 8 ? 1 : 1.5,
        points:
          props.stacked || props.bars
            ? { show: false }
            : {
                show: true,
                size: 5,
                fill: colour,
                filter: (plot: uPlot, column: number) => alone(plot.data[column] ?? []),
              },
        ...(props.bars && uPlot.paths.bars
          ? { paths: uPlot.paths.bars({ size: [0.72, 56] }) }
          : {}),
        ...(props.stacked ? { fill: colour } : painted.length === 1 ? { fill: `${colour}1c` } : {}),
      })),
    ],
    hooks: { setCursor: [(made) => setAt(made.cursor.idx ?? null)] },
  };
}

/** Return the width of the axis for its labels. */
function roomFor(words: string[] | null): number {
  const longest = Math.max(0, ...(words ?? []).map((word) => word.length));
  return Math.max(40, Math.ceil(longest * 6.7) + 14);
}

/** Format axis times: the date at the start of a day, with the year at the start of a year, else the hour. */
function ticks(splits: number[], days = false): string[] {
  const where = days ? "UTC" : session.zone;
  const zone = where === "UTC" ? { timeZone: "UTC" } : {};
  const date = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", ...zone });
  const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", ...zone });
  const [first, last] = [splits[0] ?? 0, splits.at(-1) ?? 0].map((seconds) =>
    date.format(seconds * 1000),
  );
  let day = first === last ? first : ""; // a chart within one day shows only hours
  let year = yearOf(Date.now(), where);
  return splits.map((seconds) => {
    const here = date.format(seconds * 1000);
    if (here === day) return hour.format(seconds * 1000);
    day = here;
    const before = year;
    year = yearOf(seconds * 1000, where);
    return year === before ? here : `${here} ${year}`;
  });
}
