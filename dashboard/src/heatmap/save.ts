// Save the map: the GPUs as CSV, and what is on the screen with its legend as a picture.
import type { GpuMap } from "../api/types";
import { css } from "../charts/colours";
import { pictureOf, type Key } from "../charts/picture";
import { t } from "../i18n/text";
import { saveCsv, savePng } from "../ui/export";
import { count, span } from "../ui/format";
import type { Colouring } from "./colouring";
import { MARKS } from "./tip";

/** Colours of a scale that are named in the legend of a picture. */
const STEPS = 5;

export function saveMapTable(map: GpuMap): void {
  saveCsv("gpus", [
    ["node", "gpu", "model", "state", `${map.quantity} (${map.unit})`, "namespace", "workload"],
    ...map.counts
      .flatMap((gpus, node) => new Array<number>(gpus).fill(node))
      .map((node, gpu) => rowOf(map, node, gpu)),
  ]);
}

function rowOf(map: GpuMap, node: number, gpu: number): (string | number | null)[] {
  const holder = map.holders[map.holderOf[gpu] ?? -1];
  return [
    map.nodes[node] ?? "",
    map.indexes[gpu] ?? null,
    map.models[map.modelOf[node] ?? 0] ?? "",
    MARKS[map.marks[gpu] ?? ""] ?? "",
    map.values[gpu] ?? null,
    holder?.namespace ?? "",
    holder?.name ?? "",
  ];
}

export function saveMapPicture(
  canvas: HTMLCanvasElement,
  title: string,
  colouring: Colouring,
): void {
  savePng(title, pictureOf(canvas, title, keysOf(colouring)));
}

/** Return the legend: a few values of the scale, then the categories and states with their numbers. */
export function keysOf({ scale, entries, more }: Colouring): Key[] {
  const keys: Key[] = [];
  for (let step = 0; scale && step < STEPS; step++) {
    const rate = step / (STEPS - 1);
    const value = scale.low + rate * (scale.high - scale.low);
    const name = scale.unit === "s" ? span(value) : `${Math.round(value)} ${scale.unit}`;
    keys.push({ name, colour: css(scale.colour(rate)) });
  }
  for (const entry of entries)
    keys.push({ name: `${entry.name} ${count(entry.count)}`, colour: css(entry.colour) });
  if (more) keys.push({ name: t("and {more} more", { more }), colour: "transparent" });
  return keys;
}
