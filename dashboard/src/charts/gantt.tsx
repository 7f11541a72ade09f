// Who held the GPUs of a node: rows are GPUs, bars are workloads, coloured by team.
import { useRef, useState } from "preact/hooks";
import type { Occupancy, OccupancyPeriod } from "../api/types";
import { plural, rich, t } from "../i18n/text";
import { link } from "../state/route";
import { useSession, type Zone } from "../state/session";
import { list, moment, percent, span } from "../ui/format";
import { saveCsv, savePng } from "../ui/export";
import { teamColours, themeColour } from "./colours";
import { heldShare, occupancyRows, type Bar, type Row } from "./occupancy";
import { emptyCanvas, pictureOf } from "./picture";
import { timeLabels, wholeTimes } from "./time_labels";

const TICKS = 6;
const EDGE = 0.03;
const SHORTEST_DRAG = 0.01;
const PICTURE = { width: 1100, row: 24, label: 70 };

export function Gantt(props: {
  occupancy: Occupancy;
  start: number;
  end: number;
  onZoom: (from: number, to: number) => void;
}) {
  const { occupancy, start, end } = props;
  const now = Date.now() / 1000;
  const rows = occupancyRows(occupancy, start, end, now);
  const colours = teamColours(occupancy.periods.map((period) => period.team));
  const drag = useDrag((from, to) =>
    props.onZoom(start + from * (end - start), start + to * (end - start)),
  );
  const held = heldShare(occupancy, start, end, now);
  return (
    <figure class="gantt" aria-label={t("Workloads on each GPU over time")}>
      <div class="gantt-rows" {...drag.handlers}>
        {rows.map((row) => (
          <div class="gantt-row" key={row.name}>
            <span class="muted small num">{row.name}</span>
            <div class="gantt-line">
              {row.bars.map((bar) => (
                <BarLink
                  key={bar.key}
                  bar={bar}
                  now={now}
                  colour={colours.get(bar.period.team) ?? ""}
                />
              ))}
            </div>
          </div>
        ))}
        {drag.selection && (
          <div class="gantt-selection">
            <span
              style={{
                left: `${drag.selection[0] * 100}%`,
                width: `${(drag.selection[1] - drag.selection[0]) * 100}%`,
              }}
            />
          </div>
        )}
      </div>
      <ShareAxis start={start} end={end} />
      <figcaption class="legend">
        {held !== null && (
          <span>
            {rich("held {share} of the time", { share: <b class="num">{percent(held)}</b> })}
          </span>
        )}
        {[...colours].map(([team, colour]) => (
          <span class="key" key={team}>
            <span class="swatch" style={{ background: colour }} />
            {team || t("another namespace")}
          </span>
        ))}
        <span class="chart-tools">
          <button type="button" class="linkish small" onClick={() => saveTable(occupancy)}>
            CSV
          </button>
          <button type="button" class="linkish small" onClick={() => savePicture(rows, colours)}>
            PNG
          </button>
        </span>
      </figcaption>
      {occupancy.truncated && (
        <p class="muted small">
          {t("The oldest workloads are not shown. Choose a shorter range.")}
        </p>
      )}
    </figure>
  );
}

export function ShareAxis(props: { start: number; end: number }) {
  const { start, end } = props;
  const { zone } = useSession();
  // A label at the end would be cut.
  const times = wholeTimes(start, end - EDGE * (end - start), zone, TICKS);
  const labels = timeLabels(times, zone);
  return (
    <div class="gantt-axis muted small num" aria-hidden="true">
      <div>
        {times.map((time, tick) => (
          <span key={time} style={{ left: `${((time - start) / (end - start)) * 100}%` }}>
            {labels[tick]}
          </span>
        ))}
      </div>
    </div>
  );
}

function saveTable(occupancy: Occupancy): void {
  const at = (seconds: number) => (seconds ? new Date(seconds * 1000).toISOString() : null);
  saveCsv("occupancy", [
    ["gpus", "team", "user", "namespace", "kind", "workload", "pod", "start", "end", "share"],
    ...occupancy.periods.map((period) => [
      period.gpus.join(" "),
      period.team,
      period.user,
      period.namespace,
      period.workloadKind,
      period.workloadName,
      period.podName,
      at(period.start),
      at(period.end),
      period.share,
    ]),
  ]);
}

function savePicture(rows: readonly Row[], colours: ReadonlyMap<string, string>): void {
  const { width, row: height, label } = PICTURE;
  const canvas = emptyCanvas(width, rows.length * height);
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  rows.forEach((row, place) => {
    context.fillStyle = themeColour("--muted");
    context.fillText(row.name, 0, place * height + height / 2);
    for (const bar of row.bars) {
      context.fillStyle = colours.get(bar.period.team) ?? "";
      const [left, length] = [bar.left * (width - label), bar.width * (width - label)];
      const top = place * height + 2 + bar.top * (height - 4);
      context.fillRect(label + left, top, Math.max(1, length - 1), bar.height * (height - 4));
    }
  });
  const keys = [...colours].map(([name, colour]) => ({
    name: name || t("another namespace"),
    colour,
  }));
  savePng("occupancy", pictureOf(canvas, t("Workloads on each GPU over time"), keys));
}

function BarLink(props: { bar: Bar; now: number; colour: string }) {
  const { period, left, width, top, height } = props.bar;
  const style = {
    left: `${left * 100}%`,
    width: `max(2px, ${width * 100}%)`,
    top: `${top * 100}%`,
    height: `${height * 100}%`,
    background: props.colour,
  };
  const { zone } = useSession();
  const text = `${describe(period, props.now)}\n${whenText(period.start, period.end, zone)}`;
  return period.workloadUid ? (
    <a
      class="gantt-bar"
      href={link(["workloads", period.workloadUid])}
      title={text}
      aria-label={text}
      draggable={false}
      style={style}
    >
      {height === 1 && period.workloadName}
    </a>
  ) : (
    <span class="gantt-bar" title={text} style={style} />
  );
}

/** Return from when to when GPUs were held, in seconds; an end of 0 has not come. */
export function whenText(start: number, end: number, zone: Zone): string {
  return `${moment(start * 1000, zone)} – ${end ? moment(end * 1000, zone) : t("now")}`;
}

function describe(period: OccupancyPeriod, now: number): string {
  const name = period.workloadName
    ? list(
        [`${period.workloadKind} ${period.namespace}/${period.workloadName}`, period.user].filter(
          Boolean,
        ),
      )
    : t("a workload of another namespace");
  const all = plural(period.gpuCount, "{n} GPU", "{n} GPUs");
  const gpus =
    period.share < 1 ? t("{share} of {all}", { share: percent(period.share), all }) : all;
  const values = { name, gpus, time: span((period.end || now) - period.start) };
  return period.end
    ? t("{name}, {gpus}, for {time}", values)
    : t("{name}, {gpus}, for {time} so far", values);
}

/** Select a part of the time by dragging; a click on a bar still opens it. */
export function useDrag(onSelect: (from: number, to: number) => void) {
  const began = useRef<number | null>(null);
  const dragged = useRef(false);
  const [selection, setSelection] = useState<[number, number] | null>(null);
  const shareAt = (event: PointerEvent): number | null => {
    const line = (event.currentTarget as HTMLElement).querySelector(".gantt-line");
    if (!line) return null;
    const box = line.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  return {
    selection,
    handlers: {
      onPointerDown: (event: PointerEvent) => {
        dragged.current = false;
        if (event.pointerType === "mouse") began.current = shareAt(event);
      },
      onPointerMove: (event: PointerEvent) => {
        const at = shareAt(event);
        if (began.current === null || at === null) return;
        setSelection([Math.min(began.current, at), Math.max(began.current, at)]);
      },
      onPointerUp: () => {
        const chosen = selection;
        began.current = null;
        setSelection(null);
        if (!chosen || chosen[1] - chosen[0] < SHORTEST_DRAG) return;
        dragged.current = true;
        onSelect(chosen[0], chosen[1]);
      },
      onPointerLeave: () => {
        began.current = null;
        setSelection(null);
      },
      onClickCapture: (event: MouseEvent) => {
        if (dragged.current) event.preventDefault();
      },
    },
  };
}
