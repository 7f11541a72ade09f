import { describe, expect, test, vi } from "vitest";
import { splitEvents } from "../src/api/sse";
import { align, alone, nearest, stack, statisticsOf } from "../src/charts/align";
import { teamColours } from "../src/charts/colours";
import { heldShare, occupancyRows } from "../src/charts/occupancy";
import { timeLabels, wholeTimes } from "../src/charts/time_labels";
import { CORDONED, colouringOf } from "../src/heatmap/colouring";
import { GAP, gpuAt, layOut, nodeOf, placeOf } from "../src/heatmap/layout";
import type { Report, ReportRow, WorkloadRow } from "../src/api/types";
import { pinchOf } from "../src/heatmap/pinch";
import { gangsOf } from "../src/pages/gang";
import { allocatedRows, coverageText, stackedLines } from "../src/pages/report";
import { durationLabel, gpusOf, modelsOf } from "../src/pages/request";
import { byFree } from "../src/pages/capacity";
import { formatDays, lastDays, lastHours, monthOf, periodOf } from "../src/pages/period";
import { dueShares, inTree } from "../src/pages/shares";
import { waitingElsewhere, waitingOf } from "../src/pages/waiting";
import { chosenRange, rangeOf } from "../src/state/range";
import { hrefOf, pageOf, parseRoute } from "../src/state/route";
import { parseSort, sorted } from "../src/state/sort";
import {
  shortUid,
  distinctLabels,
  fieldTime,
  limitText,
  moment,
  parseFieldTime,
  short,
  shortModel,
  span,
} from "../src/ui/format";

describe("the map", () => {
  test("finds every GPU at its position", () => {
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

  test("has no GPU between the nodes", () => {
    const layout = layOut([8, 8], 100);
    expect(gpuAt(layout, (layout.x[1] as number) - GAP / 2, 1)).toBe(-1);
    expect(gpuAt(layout, -1, 0)).toBe(-1);
    expect(gpuAt(layout, 0, layout.height + 5)).toBe(-1);
  });
});

describe("the usage report", () => {
  const row = (name: string, hours: number, kind: ReportRow["row"] = "group"): ReportRow => ({
    row: kind,
    name,
    namespace: "",
    kind: "",
    uid: "",
    gpu_hours: hours,
    idle_gpu_hours: 0,
    avg_utilization: null,
    cost: 0,
    energy_kwh: null,
    share: 0,
  });
  const report: Report = {
    cluster_name: "prod",
    period: "2026-11",
    group_by: "workload",
    start_time: "",
    end_time: "",
    hours_accounted: 2,
    hours_in_period: 720,
    currency: "",
    totals: {
      capacity_gpu_hours: 20,
      allocated_gpu_hours: 14.75,
      idle_gpu_hours: 0,
      avg_utilization: null,
      cost: 0,
      energy_kwh: null,
      allocation_rate: 73.75,
    },
    rows: [
      row("a", 8.25),
      row("a", 4),
      row("c", 1.5),
      row("unattributed", 1, "unattributed"),
      row("unallocated", 5.25, "unallocated"),
    ],
    series: {
      step: "hour",
      times: ["2026-11-01T00:00:00Z", "2026-11-01T01:00:00Z"],
      lines: [
        {
          row: "group",
          name: "a",
          namespace: "x",
          kind: "Job",
          uid: "1",
          gpu_hours: [4, 4.25],
          cost: [4, 4.25],
          energy_kwh: [null, null],
        },
        {
          row: "group",
          name: "a",
          namespace: "y",
          kind: "Job",
          uid: "2",
          gpu_hours: [0, 4],
          cost: [0, 4],
          energy_kwh: [null, null],
        },
        {
          row: "others",
          name: "others",
          namespace: "",
          kind: "",
          uid: "",
          gpu_hours: [1, 1.5],
          cost: [1, 1.5],
          energy_kwh: [null, null],
        },
      ],
    },
  };

  test("the stacked lines add up to the total of the table", () => {
    const lines = stackedLines(report);
    const top = stack(align(lines).values).at(-1) ?? [];
    const held = allocatedRows(report);
    expect(top.reduce((sum: number, value) => sum + (value ?? 0), 0)).toBe(
      report.totals.allocated_gpu_hours,
    );
    expect(held.reduce((sum, each) => sum + each.gpu_hours, 0)).toBe(
      report.totals.allocated_gpu_hours,
    );
    expect(lines.map((line) => line.name)).toEqual(["a", "y/a", "all others"]);
  });

  test("the lines of several runs of one workload have the runs' uids", () => {
    const [line] = report.series?.lines ?? [];
    const runs = ["aaaaaaaa-1", "bbbbbbbb-2"].map((uid) => ({ ...line, uid }));
    const lines = stackedLines({ ...report, series: { ...report.series, lines: runs } } as Report);
    expect(lines.map((each) => each.name)).toEqual(["a aaaaaaaa", "a bbbbbbbb"]);
  });

  test("hours that were observed in part are neither whole nor complete", () => {
    const text = (hours: number, of: number) =>
      coverageText({ ...report, hours_accounted: hours, hours_in_period: of });
    expect(text(1.9972, 96)).toBe("1.9 of 96 hours observed");
    expect(text(167.9999, 168)).toBe("167.9 of 168 hours observed");
    expect(text(0.0003, 24)).toBe("less than 0.1 of 24 hours observed");
    expect(text(0, 24)).toBe("0 of 24 hours observed");
    expect(text(9, 24)).toBe("9 of 24 hours observed");
    expect(text(8.3, 744)).toBe("8.3 of 744 hours observed");
    expect(text(168, 168)).toBe("");
  });

  test("unallocated hours are not a row, hours without a group are", () => {
    expect(allocatedRows(report).map((each) => each.row)).toEqual([
      "group",
      "group",
      "group",
      "unattributed",
    ]);
  });
});

test("a list is sorted in both directions, with missing values last", () => {
  const values = { size: (row: { size: number | null }) => row.size };
  const rows = [{ size: 2 }, { size: null }, { size: 3 }, { size: 1 }];
  expect(sorted(rows, parseSort(undefined, "size"), values).map((row) => row.size)).toEqual([
    1,
    2,
    3,
    null,
  ]);
  expect(sorted(rows, parseSort("-size", ""), values).map((row) => row.size)).toEqual([
    3,
    2,
    1,
    null,
  ]);
  expect(sorted(rows, parseSort("colour", ""), values)).toEqual(rows);
});

test("two fingers zoom around their centre and pan with it", () => {
  const before = [
    { x: 0, y: 0 },
    { x: 10, y: 0 },
  ] as const;
  expect(
    pinchOf(before, [
      { x: 0, y: 4 },
      { x: 20, y: 4 },
    ]),
  ).toEqual({ factor: 2, middle: { x: 10, y: 4 }, moved: { x: 5, y: 4 } });
  expect(
    pinchOf(
      [
        { x: 1, y: 1 },
        { x: 1, y: 1 },
      ],
      before,
    ).factor,
  ).toBe(1);
});

describe("gangs", () => {
  const claim = (name: string, gang: string, size: number | null, nodes: string[]) => ({
    namespace: "ml",
    name,
    uid: name,
    count: 8,
    policy: "contiguous",
    exclusivity: "Exclusive",
    gang,
    gangSize: size,
    phase: nodes.length ? "Bound" : "Pending",
    nodeName: nodes[0] ?? "",
    gpuIds: [],
    allocated: "",
    message: "",
    allocations: nodes.map((node) => ({
      podUid: node,
      podName: node,
      nodeName: node,
      gpuIds: [0, 1, 2, 3, 4, 5, 6, 7],
      share: null,
      phase: "Bound",
    })),
    createdAt: null,
  });

  test("are complete when enough pods are placed", () => {
    const claims = [
      claim("a", "whole", 2, ["n1", "n2"]),
      claim("b", "part", 3, ["n3"]),
      claim("c", "none", 4, []),
      claim("d", "", null, ["n9"]),
    ];
    const gangs = gangsOf(claims);
    expect(gangs.map((gang) => [gang.name, gang.phase, gang.placed, gang.size, gang.gpus])).toEqual(
      [
        ["none", "Pending", 0, 4, 32],
        ["part", "Partly placed", 1, 3, 8],
        ["whole", "Bound", 2, 2, 16],
      ],
    );
  });

  test("may have several claims", () => {
    const [gang] = gangsOf([claim("a", "g", 2, ["n1"]), claim("b", "g", 2, ["n2"])]);
    expect(gang).toMatchObject({ placed: 2, phase: "Bound", nodes: ["n1", "n2"] });
  });
});

test("nodes are counted by their free GPUs", () => {
  const map = {
    quantity: "utilization",
    unit: "%",
    takenAt: 1,
    nodes: ["n1", "n2", "n3"],
    counts: [4, 4, 1],
    models: ["H200"],
    modelOf: [0, 0, 0],
    indexes: [0, 1, 2, 3, 0, 1, 2, 3, 0],
    values: [0, 0, 0, 0, 0, 0, 0, 0, 0],
    marks: "fhffffcxh",
    islands: "001100000",
    groups: {},
    holders: [],
    holderOf: [],
  };
  expect(byFree(map)).toEqual([
    [2, 1],
    [3, 1],
  ]);
});

test("complete events are split off and the rest is kept", () => {
  const { events, rest } = splitEvents(": hello\n\nevent: node\ndata: {}\n\nevent: gp");
  expect(events).toEqual([{ name: "node", data: "{}" }]);
  expect(rest).toBe("event: gp");
});

test("a route survives formatting and parsing", () => {
  const href = hrefOf(["nodes", "a/b?c#d"], { name: "x&y", page: undefined });
  expect(parseRoute(href)).toEqual({ path: ["nodes", "a/b?c#d"], query: { name: "x&y" } });
});

test("periods are whole hours and days in UTC", () => {
  expect(lastHours(24, Date.UTC(2026, 0, 2, 3, 40))).toEqual({
    start_time: "2026-01-01T03:00:00Z",
    end_time: "2026-01-02T03:00:00Z",
  });
  expect(periodOf(monthOf("2026-02"))).toBe("2026-02-01..2026-02-28");
  expect(periodOf(lastDays(7, Date.UTC(2026, 0, 2, 3, 40)))).toBe("2025-12-27..2026-01-02");
  expect(formatDays(monthOf("2026-02"))).toMatch(/^1\s?\u2013\s?28 Feb 2026$/u);
});

test("an invalid month becomes the current month", () => {
  const now = Date.UTC(2026, 1, 3);
  for (const typed of ["", "2", "2026-", "2026-13", "February 2026"])
    expect(periodOf(monthOf(typed, now))).toBe("2026-02-01..2026-02-28");
});

test("numbers and durations are short", () => {
  expect([short(41_200), short(0.4567), short(1_250_000)]).toEqual(["41.2k", "0.457", "1.25M"]);
  expect([short(0.0000623), short(0)]).toEqual(["6.2e-5", "0"]);
  expect([span(59), span(3_700), span(90_000)]).toEqual(["59s", "1h 1m", "1d 1h"]);
});

test("a model has one name in every spelling", () => {
  const spellings = ["NVIDIA-A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA_A100-SXM4-80GB"];
  expect(new Set(spellings.map(shortModel))).toEqual(new Set(["A100 SXM4 80GB"]));
  expect(shortModel("AMD Instinct MI300X")).toBe("MI300X");
});

test("a waiting workload shows what it requests, any other what it has or had", () => {
  const waiting = {
    status: "Pending",
    gpuAllocation: {},
    gpuRequested: 16,
    gpuModelRequested: "NVIDIA_H100_80GB_HBM3",
  };
  const running = { ...waiting, status: "Running", gpuAllocation: { NVIDIA_L4: 2 } };
  expect([gpusOf(waiting), modelsOf(waiting)]).toEqual([16, "H100 80GB HBM3"]);
  expect([gpusOf(running), modelsOf(running)]).toEqual([2, "L4"]);
  expect(modelsOf({ ...waiting, gpuModelRequested: "" })).toBe("");
  expect(gpusOf({ ...waiting, status: "Completed" })).toBe(0);
  expect(durationLabel("Pending", false)).toBe("Waiting for");
  expect(durationLabel("Running", false)).toBe("Running for");
  expect(durationLabel("Failed", true)).toBe("Ran for");
});

test("a time shows its year unless it is the current one", () => {
  const [newYear, now] = [Date.UTC(2026, 0, 1, 0, 30), Date.UTC(2026, 10, 15)];
  expect(moment(newYear, "UTC", false, now)).toBe("01 Jan, 00:30");
  expect(moment(newYear - 3_600_000, "UTC", true, now)).toBe("31 Dec 2025, 23:30:00");
  expect(moment(newYear, "UTC", false, Date.UTC(2025, 11, 31))).toBe("01 Jan 2026, 00:30");
});

test("isolated values are found, to be drawn as dots", () => {
  expect(alone([1])).toEqual([0]);
  expect(alone([null, 2, null, 3, 4, null, 5])).toEqual([1, 6]);
  expect(alone([1, 2, 3])).toEqual([]);
});

test("a limit names the first namespaces and counts the others", () => {
  expect(limitText([])).toBe("Limited to no namespace.");
  expect(limitText(["a"])).toBe("Limited to namespace a.");
  expect(limitText(["a", "b"])).toBe("Limited to namespaces a, b.");
  expect(limitText(["a", "b", "c"], 2)).toBe("Limited to namespaces a, b and 1 more.");
});

describe("the time range", () => {
  const now = Date.UTC(2026, 10, 16, 12);
  const seconds = now / 1000;

  test("is an hour until now unless the URL names another", () => {
    expect(rangeOf({}, now)).toEqual({ start: seconds - 3600, end: seconds, step: 15 });
    expect(rangeOf({ span: "nonsense" }, now)).toEqual(rangeOf({}, now));
    expect(rangeOf({ from: "9", to: "3" }, now)).toEqual(rangeOf({}, now));
    expect(rangeOf({}, now, undefined, "7d")).toEqual(rangeOf({ span: "7d" }, now));
    const ended = { start: seconds - 900_000, end: seconds - 86_400 };
    expect(rangeOf({}, now, ended)).toEqual(rangeOf({ span: "run" }, now, ended));
    expect(rangeOf({}, now, { ...ended, end: 0 })).toEqual(rangeOf({}, now));
  });

  test("is the whole run of a workload, or any part of the time", () => {
    const run = { start: seconds - 7200, end: seconds - 600 };
    const { start, end, step } = rangeOf({ span: "run" }, now, run);
    expect(start).toBeLessThanOrEqual(run.start);
    expect(end).toBeGreaterThanOrEqual(run.end);
    expect(end - start).toBeLessThan(run.end - run.start + 2 * step);
    expect(rangeOf({ from: "1000", to: "4600", span: "7d" }, now)).toEqual({
      start: 1000,
      end: 4600,
      step: 15,
    });
  });
});

test("a line has a gap where points are missing", () => {
  const minute = 60_000;
  const points = [0, 1, 2, 9, 10].map((at) => [at, at * minute] as const);
  const { times, values } = align([{ name: "a", points }], 60);
  expect(times).toEqual([0, 60, 120, 180, 540, 600]);
  expect(values[0]).toEqual([0, 1, 2, null, 9, 10]);
  expect(statisticsOf(values[0] ?? [])).toEqual({ last: 10, mean: 4.4, max: 10 });
});

test("the readout shows the point next to the cursor and none that is far away", () => {
  expect(nearest([0, 60, 120], 70, 90)).toBe(1);
  expect(nearest([0, 60, 120], 400, 90)).toBeNull();
});

test("labels of an axis differ", () => {
  expect(distinctLabels([2.01, 2.015, 2.02], short)).toEqual(["2.010", "2.015", "2.020"]);
  expect(distinctLabels([0, 20_000], short)).toEqual(["0", "20k"]);
});

test("a date and time field shows a time in its zone and gives it back", () => {
  const at = Date.UTC(2026, 10, 16, 9, 30);
  expect(fieldTime(at, "UTC")).toBe("2026-11-16T09:30");
  expect(parseFieldTime(fieldTime(at, "UTC"), "UTC")).toBe(at);
  expect(parseFieldTime(fieldTime(at, "local"), "local")).toBe(at);
  expect(parseFieldTime("", "UTC")).toBeNaN();
});

describe("occupancy", () => {
  const period = (podName: string, gpus: number[], start: number, end: number, share = 1) => ({
    namespace: "ns",
    team: "team",
    user: "",
    podName,
    workloadUid: podName,
    workloadKind: "Job",
    workloadName: podName,
    gpus,
    gpuCount: gpus.length || 1,
    share,
    start,
    end,
  });

  test("has a row for each GPU, and what lasts ends now", () => {
    const occupancy = {
      gpus: [0, 1],
      periods: [period("a", [0], 100, 150), period("b", [0, 1], 150, 0), period("c", [], 0, 110)],
      truncated: false,
    };
    const rows = occupancyRows(occupancy, 100, 200, 175);
    expect(rows.map((row) => [row.name, row.bars.map((bar) => [bar.left, bar.width])])).toEqual([
      [
        "GPU 0",
        [
          [0, 0.5],
          [0.5, 0.25],
        ],
      ],
      ["GPU 1", [[0.5, 0.25]]],
      ["Unknown GPU", [[0, 0.1]]],
    ]);
    expect(heldShare(occupancy, 100, 200, 175)).toBeCloseTo((50 + 50 + 10) / 150);
  });

  test("draws pods that share a GPU one below the other", () => {
    const periods = [period("a", [0], 0, 100, 0.5), period("b", [0], 50, 100, 0.5)];
    const [row] = occupancyRows({ gpus: [0], periods, truncated: false }, 0, 100, 100);
    expect(row?.bars.map((bar) => [bar.top, bar.height])).toEqual([
      [0, 0.5],
      [0.5, 0.5],
    ]);
  });
});

test("a team keeps its colour, and a few teams have different ones", () => {
  const names = ["research", "vision", "speech", "nlp", "robotics", "platform"];
  const all = teamColours(names);
  expect(new Set(all.values()).size).toBe(names.length);
  expect(teamColours(["research"]).get("research")).toBe(
    teamColours(["research", ""]).get("research"),
  );
});

describe("what waits", () => {
  const row = (name: string, user: string, startAt: number, claims: string[] = []) =>
    ({ name, uid: name, user, startAt, claims, namespace: "ns" }) as unknown as WorkloadRow;
  const unit = (claim: string, position: number) => ({
    namespace: "ns",
    name: `gang ns/${claim}`,
    claims: [claim],
    gpus: 8,
    estimate: { position, waitsFor: "8 free GPUs", expectedStart: null } as never,
  });

  test("is listed by owner, then by position, then by age", () => {
    const rows = [
      row("old", "bob", 1),
      row("second", "bob", 2, ["b"]),
      row("first", "bob", 3, ["a"]),
      row("mine", "alice", 4),
    ];
    const found = waitingOf(rows, [unit("a", 1), unit("b", 2)], "alice");
    expect(found.map((each) => each.workload.name)).toEqual(["mine", "first", "second", "old"]);
    expect(found.map((each) => each.estimate?.position)).toEqual([undefined, 1, 2, undefined]);
    const same = waitingOf(rows, [unit("a", 1), unit("b", 2)], "Alice@example.com");
    expect(same[0]?.workload.name).toBe("mine");
  });

  test("starts with the last of its claims, or when its own scheduler says", () => {
    const at = "2026-11-18T20:00:00Z";
    const late = unit("b", 2);
    const units = [
      unit("a", 1),
      { ...late, estimate: { position: 2, waitsFor: "", expectedStart: at } },
    ];
    const both = row("both", "bob", 1, ["a", "b"]);
    const slurm = { ...row("slurm", "bob", 2), expectedStart: 1_800_000_000 };
    const found = waitingOf([both, slurm, row("unknown", "bob", 3)], units as never, "");
    expect(found.map((each) => each.expected)).toEqual([Date.parse(at), 1_800_000_000_000, null]);
    expect(waitingElsewhere([both, slurm])).toEqual([slurm]);
  });
});

test("the due share of a queue is its weight among its siblings, within that of its parent", () => {
  const queues = [
    { name: "science", parent: "", weight: 3 },
    { name: "web", parent: "", weight: 1 },
    { name: "nlp", parent: "science", weight: 1 },
    { name: "vision", parent: "science", weight: 2 },
  ];
  expect([...dueShares(queues).values()]).toEqual([0.75, 0.25, 0.25, 0.5]);
  const loop = [{ name: "a", parent: "a", weight: 1 }];
  expect(dueShares(loop).get("a")).toBe(1);
  const tree = inTree([...queues].sort((a, b) => a.name.localeCompare(b.name)));
  expect(tree.map(({ queue, depth }) => `${depth} ${queue.name}`)).toEqual([
    "0 science",
    "1 nlp",
    "1 vision",
    "0 web",
  ]);
  expect(tree[0]?.within.map((queue) => queue.name)).toEqual(["science", "nlp", "vision"]);
  const loops = [
    ...loop,
    { name: "b", parent: "c", weight: 1 },
    { name: "c", parent: "b", weight: 1 },
  ];
  expect(inTree(loops).map(({ queue }) => queue.name)).toEqual(["a", "b", "c"]);
});

test.each([
  ["1", "2"],
  ["9", "1"],
  ["1731900000", "99999999999999"],
  ["9007199254740991", "9007199254740991"],
  ["1700000000", String(1700000000 + 93 * 86_400)],
])("a range from %s to %s is refused", (from, to) => {
  expect(chosenRange({ from, to })).toBeNull();
});

test.each([
  [undefined, 1],
  ["-1", 1],
  ["x", 1],
  ["2.5", 2],
  ["9999", 9999],
  ["1e30", 1_000_000],
])("page %s of a list is %s", (text, page) => {
  expect(pageOf(text)).toBe(page);
});

test.each([
  ["0a477369-ec7f-4eac-9fad-9c16f8ec5cc8", "0a477369"],
  ["slurm-1233921-1794952368", "slurm-1233921"],
  ["2f947aacc43a91a8d4f398361be04092", "2f947aac"],
])("the UID %s is shortened to %s", (uid, short) => {
  expect(shortUid(uid)).toBe(short);
});

test("a chart names a day only where it begins", () => {
  const at = Date.UTC(new Date().getUTCFullYear(), 0, 17, 21) / 1000;
  const labels = (count: number, step: number, from = at) =>
    timeLabels(
      Array.from({ length: count }, (_, place) => from + place * step),
      "UTC",
    );
  expect(labels(3, 10_800)).toEqual(["21:00", "18 Jan", "03:00"]);
  expect(labels(3, 3600, at - 36_000)).toEqual(["11:00", "12:00", "13:00"]);
  expect(labels(2, 86_400, at + 10_800)).toEqual(["18 Jan", "19 Jan"]);
});

test("free GPUs that are cordoned have a colour of their own", () => {
  vi.stubGlobal("getComputedStyle", () => ({ getPropertyValue: () => "#102030" }));
  vi.stubGlobal("document", { documentElement: {} });
  const map = {
    values: [0, 0, 90, 0],
    marks: "fchc",
    holders: [],
    holderOf: [-1, -1, -1, -1],
    unit: "%",
  };
  for (const by of ["utilization", "team", "health"] as const) {
    const states = colouringOf(map as never, by).entries.filter((each) => each.state === CORDONED);
    expect(states.map((each) => [each.name, each.count])).toEqual([["cordoned", 2]]);
  }
  vi.unstubAllGlobals();
});

test("the times of a range are whole hours or days of the zone", () => {
  const at = (text: string) => Date.parse(text) / 1000;
  const [start, end] = [at("2026-11-17T21:07:11Z"), at("2026-11-18T21:07:11Z")];
  expect(wholeTimes(start, end, "UTC", 6).map((time) => (time % 86_400) / 3600)).toEqual([
    0, 6, 12, 18,
  ]);
  const days = wholeTimes(at("2026-11-11T21:07:11Z"), end, "UTC", 6);
  expect([days.length, days.every((time) => time % 86_400 === 0)]).toEqual([3, true]);
  const local = wholeTimes(start, end, "local", 6).map((time) => new Date(time * 1000));
  expect(local.every((time) => time.getHours() % 6 === 0 && time.getMinutes() === 0)).toBe(true);
  expect(wholeTimes(start, start + 110, "UTC", 6)).toHaveLength(2);
});
