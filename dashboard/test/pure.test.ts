import { describe, expect, test } from "vitest";
import { splitEvents } from "../src/api/split";
import { align, stack } from "../src/charts/align";
import { GAP, gpuAt, layOut, nodeOf, placeOf } from "../src/heatmap/layout";
import { accounts, csvOf, stackOf } from "../src/pages/books";
import { byFree, fitting, roomOf } from "../src/pages/room";
import { lastHours, monthOf } from "../src/pages/period";
import { hrefOf, parseRoute } from "../src/state/route";
import { short, span } from "../src/ui/format";

describe("the map", () => {
  test("finds every GPU at the place where it was put", () => {
    const counts = [8, 1, 16, 3, 8, 2, 8, 8, 5];
    const layout = layOut(counts, 60);
    const total = counts.reduce((sum, count) => sum + count, 0);
    const places = new Set<string>();
    for (let gpu = 0; gpu < total; gpu++) {
      const node = nodeOf(layout, gpu);
      const [x, y] = placeOf(layout, node, gpu);
      expect(gpuAt(layout, x + 1, y + 1)).toBe(gpu);
      expect(x).toBeLessThan(layout.width);
      expect(y).toBeLessThan(layout.height);
      places.add(`${x} ${y}`);
    }
    expect(places.size).toBe(total);
  });

  test("has nothing between the nodes", () => {
    const layout = layOut([8, 8], 100);
    expect(gpuAt(layout, (layout.x[1] as number) - GAP / 2, 1)).toBe(-1);
    expect(gpuAt(layout, -1, 0)).toBe(-1);
    expect(gpuAt(layout, 0, layout.height + 5)).toBe(-1);
  });
});

const hour = (namespace: string, at: number, count: number, used: number | null) => ({
  namespace,
  stat_hour: new Date(at * 3_600_000).toISOString(),
  allocated_gpu_count: count,
  avg_utilization: used,
});

describe("the books", () => {
  const rows = ["a", "b", "c", "d"].flatMap((name, place) => [hour(name, 1, place + 0.25, 50), hour(name, 2, place + 1, null)]);

  test("the stack of the chart is the total of the table", () => {
    const all = accounts(rows);
    const drawn = stackOf(all, 2);
    const top = stack(align(drawn).values).at(-1) ?? [];
    const table = all.reduce((sum, account) => sum + account.hours, 0);
    expect(top.reduce((sum, value) => sum + value, 0)).toBe(table);
    expect(drawn.map((line) => line.name)).toEqual(["d", "c", "2 others"]);
  });

  test("utilization counts the hours that were measured", () => {
    const [account] = accounts([hour("a", 1, 4, 50), hour("a", 2, 4, null)]);
    expect(account).toMatchObject({ hours: 8, measured: 4, worked: 2 });
  });

  test("CSV quotes what needs it and disarms formulas", () => {
    expect(csvOf([["a,b", 'say "x"', "=1+1", 2.5]])).toBe('"a,b","say ""x""",\'=1+1,2.5\r\n');
  });
});

test("room is counted by runs and islands of free GPUs", () => {
  const map = {
    quantity: "utilization",
    unit: "%",
    takenAt: 1,
    nodes: ["n1", "n2"],
    counts: [4, 4],
    models: ["H200"],
    modelOf: [0, 0],
    indexes: [0, 1, 2, 3, 0, 1, 2, 3],
    values: [0, 0, 0, 0, 0, 0, 0, 0],
    marks: "fhffffcx",
    islands: "00110000",
  };
  const rooms = roomOf(map);
  expect(rooms.map((room) => [room.free, room.run, room.island])).toEqual([
    [3, 2, 2],
    [2, 2, 2],
  ]);
  expect(fitting(rooms, 3, "any", "").map((room) => room.node)).toEqual(["n1"]);
  expect(fitting(rooms, 3, "contiguous", "")).toEqual([]);
  expect(fitting(rooms, 2, "island", "H200").map((room) => room.node)).toEqual(["n2", "n1"]);
  expect(byFree(rooms)).toEqual([
    [2, 1],
    [3, 1],
  ]);
});

test("events are split where they end, and the rest is kept", () => {
  const { events, rest } = splitEvents(": hello\n\nevent: node\ndata: {}\n\nevent: gp");
  expect(events).toEqual([{ name: "node", data: "{}" }]);
  expect(rest).toBe("event: gp");
});

test("an address and its parts are the same thing", () => {
  const href = hrefOf(["nodes", "a/b?c#d"], { name: "x&y", page: undefined });
  expect(parseRoute(href)).toEqual({ path: ["nodes", "a/b?c#d"], query: { name: "x&y" } });
});

test("periods are whole hours in UTC", () => {
  expect(lastHours(24, Date.UTC(2026, 0, 2, 3, 40))).toEqual({ start_time: "2026-01-01T03:00:00Z", end_time: "2026-01-02T03:00:00Z" });
  expect(monthOf("2026-02")).toEqual({ start_time: "2026-02-01T00:00:00Z", end_time: "2026-02-28T23:00:00Z" });
});

test("numbers and spans are short", () => {
  expect([short(41_200), short(0.4567), short(1_250_000)]).toEqual(["41.2k", "0.457", "1.25M"]);
  expect([span(59), span(3_700), span(90_000)]).toEqual(["59s", "1h 1m", "1d 1h"]);
});
