import { describe, expect, test } from "vitest";
import type { Change, FindingPage, Forecast, QueueList } from "../src/api/types";
import type { ApiError } from "../src/api/client";
import { placeKeys } from "../src/charts/picture";
import { squarify } from "../src/charts/squarify";
import { cumulative, totalLine } from "../src/pages/report";
import { addDays, daysBefore, lengthOf, problemOf, spanOf, startOf } from "../src/pages/period";
import { budgetOf, isUsedUp, namespacesOf, rateOf, spendingOf } from "../src/pages/usage/budget";
import { daysOf } from "../src/pages/usage/query";
import { budgetNotices, findingNotices, jobNotices } from "../src/state/notices";
import { offlineSince, summarize } from "../src/state/problems";
import { csvOf, fileName } from "../src/ui/csv";

describe("days", () => {
  test("before a month are the month before, else as many days", () => {
    expect(daysBefore({ first: "2026-03-01", last: "2026-03-31" })).toEqual({
      first: "2026-02-01",
      last: "2026-02-28",
    });
    expect(daysBefore({ first: "2026-03-02", last: "2026-03-08" })).toEqual({
      first: "2026-02-23",
      last: "2026-03-01",
    });
  });

  test("are checked before anything is requested", () => {
    expect(problemOf({ first: "2026-03-02", last: "2026-03-01" })).toMatch(/before the first/);
    expect(problemOf({ first: "2024-03-02", last: "2026-03-01" })).toMatch(/at most 400 days/);
    expect(problemOf({ first: "", last: "2026-03-01" })).toMatch(/both days/);
    expect(problemOf({ first: "2026-03-01", last: "2026-03-01" })).toBe("");
  });

  test("have a length and an end in their zone", () => {
    expect(lengthOf({ first: "2026-02-27", last: "2026-03-01" })).toBe(3);
    expect(addDays("2026-02-28", 1)).toBe("2026-03-01");
    expect(startOf("2026-03-01", "UTC")).toBe(Date.UTC(2026, 2, 1));
    expect(startOf("2026-03-01", "local")).toBe(new Date(2026, 2, 1).getTime());
    expect(spanOf({ first: "2026-03-01", last: "2026-03-02" }).end_time).toBe(
      "2026-03-02T23:59:59Z",
    );
  });

  test("come from the address", () => {
    const now = Date.UTC(2026, 2, 9, 12);
    expect(daysOf({}, "UTC", now)).toEqual({ first: "2026-03-03", last: "2026-03-09" });
    expect(daysOf({ period: "dates", from: "2026-01-01", to: "2026-01-02" }, "UTC", now)).toEqual({
      first: "2026-01-01",
      last: "2026-01-02",
    });
  });
});

test("cumulative lines end at their sums, also where one has no point", () => {
  const lines = [
    {
      name: "a",
      points: [
        [1, 0],
        [2, 60],
      ] as [number, number][],
    },
    { name: "b", points: [[5, 60]] as [number, number][] },
  ];
  expect(cumulative(lines).map((line) => line.points)).toEqual([
    [
      [1, 0],
      [3, 60],
    ],
    [
      [0, 0],
      [5, 60],
    ],
  ]);
  expect(totalLine(lines)).toEqual([
    [1, 0],
    [7, 60],
  ]);
});

test("a treemap fills its area in proportion to the values", () => {
  const tiles = squarify([6, 6, 4, 3, 2, 2, 1, 0], (value) => value, 1.5);
  expect(tiles).toHaveLength(7);
  for (const tile of tiles) {
    expect(tile.width * tile.height).toBeCloseTo(tile.item / 24, 6);
    expect(tile.left + tile.width).toBeLessThanOrEqual(1 + 1e-9);
    expect(tile.top + tile.height).toBeLessThanOrEqual(1 + 1e-9);
    const ratio = (tile.width * 1.5) / tile.height;
    expect(Math.max(ratio, 1 / ratio)).toBeLessThan(4);
  }
  expect(squarify([], (value) => value, 2)).toEqual([]);
});

test("the keys of a picture wrap into rows", () => {
  const keys = ["one", "two", "three"].map((name) => ({ name, colour: "red" }));
  const rows = placeKeys(keys, 120, () => 20).map((place) => [place.row, place.x]);
  expect(rows).toEqual([
    [0, 0],
    [0, 54],
    [1, 0],
  ]);
});

type Queue = QueueList["data"][number];
const queue = (used: number, unit: "cost" | "gpuHours" = "gpuHours"): Queue =>
  ({
    name: "research",
    namespaces: ["nlp", "vision"],
    conditions: [],
    budget: { unit, period: "Week", hard: false, total: 100, used, percent: used, renewedAt: null },
  }) as unknown as Queue;
const forecast = (expected: number): Forecast =>
  ({
    data: ["nlp", "vision"].map((name) => ({
      name,
      points: Array.from({ length: 24 }, (_, hour) => ({
        time: new Date(Date.UTC(2026, 0, 1, hour)).toISOString(),
        expected,
        low: 0,
        high: 0,
      })),
    })),
  }) as unknown as Forecast;

describe("a budget", () => {
  test("applies to the namespaces of its queue", () => {
    expect(budgetOf([queue(0)], "nlp")).toMatchObject({ metric: "hours", total: 100, hours: 168 });
    expect(budgetOf([queue(0)], "other")).toBeUndefined();
    expect(rateOf({ name: "", metric: "hours", total: 336, hours: 168 })).toBe(2);
  });

  test("is used up when the forecast has spent the rest", () => {
    const spent = (each: Queue, next: Forecast, price: number) =>
      spendingOf(each.budget, each.namespaces, next, price);
    expect(spent(queue(90), forecast(1), 1)?.at).toBe(Date.UTC(2026, 0, 1, 4));
    expect(spent(queue(90, "cost"), forecast(1), 5)?.at).toBe(Date.UTC(2026, 0, 1, 0));
    expect(spent(queue(0), forecast(1), 1)?.at).toBeNull();
    expect(spent(queue(0), { data: [] }, 1)).toBeNull();
  });

  test("of a department counts the namespaces of its queues", () => {
    const department = { ...queue(90), name: "science", namespaces: [] };
    const member = { ...queue(0), parent: "science", budget: null };
    const all = [department, member];
    expect(namespacesOf(department, all)).toEqual(["nlp", "vision"]);
    expect(budgetOf(all, "nlp")).toMatchObject({ name: "budget of queue science" });
    const covered = namespacesOf(department, all);
    expect(spendingOf(department.budget, covered, forecast(1), 1)?.at).toBe(
      Date.UTC(2026, 0, 1, 4),
    );
  });

  test("is used up as soon as a hard one has ended its units", () => {
    const ended = {
      ...queue(98),
      conditions: [{ type: "WithinBudget", status: "False", reason: "UsedUp", message: "" }],
    };
    expect([isUsedUp(queue(98)), isUsedUp(ended), isUsedUp(queue(100))]).toEqual([
      false,
      true,
      true,
    ]);
    const [notice] = budgetNotices({ data: [ended] } as QueueList, () => 7);
    expect(notice?.tone).toBe("bad");
  });
});

describe("the bell", () => {
  const change = (name: string, title: string, now: string): Change => ({
    at: 10,
    subject: "workload",
    name,
    title,
    was: "",
    now,
    reason: "",
  });

  test("tells of followed workloads and namespaces only", () => {
    const changes = [
      change("u1", "Job nlp/train", "Failed"),
      change("u2", "Job vision/train", "Running"),
      change("u3", "Job other/train", "Failed"),
      change("u1", "Job nlp/train", "Pending"),
    ];
    const found = jobNotices(changes, new Set(["workload u1 train", "namespace vision"]));
    expect(found.map((notice) => [notice.path[1], notice.tone, notice.text])).toEqual([
      ["u1", "bad", "failed"],
      ["u2", "info", "started"],
    ]);
  });

  test("tells of budgets from 80% on, and of findings", () => {
    const list = { data: [queue(79), queue(85), queue(100)] } as QueueList;
    expect(budgetNotices(list, () => 7).map((notice) => [notice.tone, notice.at])).toEqual([
      ["warn", 7],
      ["bad", 7],
    ]);
    const page = {
      data: [
        { node: "n", gpu: 3, signal: "xid", severity: "Unhealthy", message: "XID 48", since: null },
      ],
      total: 1,
    } as unknown as FindingPage;
    expect(findingNotices(page)[0]).toMatchObject({ title: "GPU 3 of n", tone: "bad", at: 0 });
    const all = { ...page, data: [...page.data, ...page.data] };
    expect(findingNotices(all)).toMatchObject([{ title: "n", text: "XID 48 and 1 more" }]);
  });
});

test("each problem is named once, with what to do", () => {
  const reload = () => undefined;
  const away = {
    error: { status: 0, message: "the server can't be reached", trace: "" } as ApiError,
    at: 50,
    reload,
  };
  const down = {
    error: { status: 500, message: "the database is down", trace: "abc" } as ApiError,
    at: 0,
    reload,
  };
  expect(summarize([away, away, down]).map((each) => [each.text, each.count])).toEqual([
    ["the server can't be reached", 2],
    ["the database is down", 1],
  ]);
  expect(offlineSince([away, { ...away, at: 40 }, down])).toBe(40);
  expect(offlineSince([down])).toBeNull();
});

test("CSV quotes what needs it and defuses formulas", () => {
  expect(csvOf([["a", 'say "hi", then', "=1+1", -2, null, "-5%"]])).toBe(
    `a,"say ""hi"", then",'=1+1,-2,,-5%\r\n`,
  );
  expect(fileName("GPU hours by team/x", "csv")).toBe("GPU-hours-by-team-x.csv");
});
