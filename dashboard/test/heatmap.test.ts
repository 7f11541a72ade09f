import { describe, expect, test } from "vitest";
import { arrange, find } from "../src/heatmap/arrange";
import { gpuAt, gpuBeyond, layOut, nodeOf, placeOf } from "../src/heatmap/layout";
import { bounded, inSight, onScreen, zoomed } from "../src/heatmap/view";

const GROUPED = {
  quantity: "utilization",
  unit: "%",
  takenAt: 1,
  nodes: ["n1", "n2", "n3"],
  counts: [2, 1, 2],
  models: ["H200"],
  modelOf: [0, 0, 0],
  indexes: [0, 1, 0, 0, 1],
  values: [10, 20, 30, null, 50],
  marks: "hfhhx",
  islands: "00-11",
  groups: { rack: { values: ["r2", "r10", ""], of: [1, 0, 2] } },
  holders: [
    { uid: "u1", kind: "Job", name: "bert", namespace: "ml", team: "nlp", user: "ann" },
    { uid: "u2", kind: "Job", name: "vit", namespace: "ml", team: "vision", user: "bob" },
  ],
  holderOf: [0, -1, 1, 1, -1],
};

describe("the map", () => {
  test("is ordered by group, with natural numbers and unknown values last", () => {
    const { map, sections } = arrange(GROUPED, "rack");
    expect(sections).toEqual([
      { name: "r2", first: 0 },
      { name: "r10", first: 1 },
      { name: "not known", first: 2 },
    ]);
    expect(map.nodes).toEqual(["n2", "n1", "n3"]);
    expect(map.values).toEqual([30, 10, 20, null, 50]);
    expect(map.marks).toBe("hhfhx");
    expect(map.holderOf).toEqual([1, 0, -1, 1, -1]);
    expect(arrange(GROUPED, "no such group").map).toBe(GROUPED);
  });

  test("finds GPUs by node, workload, team and user", () => {
    const found = (text: string) => [...(find(GROUPED, text)?.gpus ?? [])].join("");
    expect(found("BERT")).toBe("10000");
    expect(found("vision")).toBe("00110");
    expect(found("bob")).toBe("00110");
    expect(found("n1")).toBe("11000");
    expect(find(GROUPED, " ")).toBeNull();
  });

  test("begins each of a few groups below a heading, and every GPU is found at its place", () => {
    const { map, sections } = arrange(GROUPED, "rack");
    const layout = layOut(map.counts, 60, sections, 10);
    expect(layout.headings.map((heading) => heading.name)).toEqual(["r2", "r10", "not known"]);
    for (let gpu = 0; gpu < 5; gpu++) {
      const [x, y] = placeOf(layout, nodeOf(layout, gpu), gpu);
      expect(gpuAt(layout, x + 1, y + 1)).toBe(gpu);
    }
    expect(gpuAt(layout, 1, (layout.headings[1]?.y ?? 0) + 5)).toBe(-1);
  });

  test("moves up and down between nodes and groups, and back", () => {
    const layout = layOut([4, 4, 4, 4], 30, [{ name: "all", first: 0 }], 10);
    expect(layout.rows).toEqual([0, 2, 4]);
    const down = [0];
    for (let step = 0; step < 4; step++) down.push(gpuBeyond(layout, down.at(-1) ?? 0, 1));
    expect(down).toEqual([0, 2, 8, 10, 10]);
    expect(gpuBeyond(layout, 8, -1)).toBe(2);
    expect(gpuBeyond(layout, 0, -1)).toBe(0);
  });

  test("keeps the selected GPU in view when it zooms around it", () => {
    const layout = layOut(new Array<number>(200).fill(8), 400);
    const size = { width: 400, height: layout.height };
    let view = { scale: 1, x: 0, y: 0 };
    for (const gpu of [0, 700, 1599])
      for (const factor of [1.5, 1.5, 1.5, 1 / 1.5]) {
        const scale = Math.max(1, view.scale * factor);
        view = bounded(zoomed(view, scale, ...onScreen(view, layout, gpu)), layout, size, 1);
        view = bounded(inSight(view, layout, gpu, size), layout, size, 1);
        const [x, y] = onScreen(view, layout, gpu);
        expect(x).toBeGreaterThan(0);
        expect(x).toBeLessThan(size.width);
        expect(y).toBeGreaterThan(0);
        expect(y).toBeLessThan(size.height);
      }
  });
});
