import { describe, expect, test } from "vitest";
import { curvesOf } from "../src/pages/training";

describe("runs are compared", () => {
  const row = (metric: string, value: number, timestamp: number) => ({ metric, value, timestamp });
  const runs = [
    {
      name: "a",
      rows: [row("step", 1, 100), row("loss", 5, 101), row("step", 2, 110), row("loss", 4, 111)],
    },
    { name: "b", rows: [row("loss", 9, 900), row("loss", 8, 960)] },
  ] as unknown as Parameters<typeof curvesOf>[0];

  test("by the last step reported, or by number where a run reports none", () => {
    expect(curvesOf(runs, "step")).toEqual([
      {
        metric: "loss",
        lines: [
          {
            name: "a",
            points: [
              [5, 1000],
              [4, 2000],
            ],
          },
          {
            name: "b",
            points: [
              [9, 0],
              [8, 1000],
            ],
          },
        ],
      },
    ]);
  });

  test("by the time since their first number, with values in between interpolated", () => {
    expect(curvesOf(runs, "elapsed")[0]?.lines.map((line) => line.points)).toEqual([
      [
        [5, 1],
        [4, 11],
      ],
      [
        [9, 0],
        [9 - 1 / 60, 1],
        [9 - 11 / 60, 11],
        [8, 60],
      ],
    ]);
  });
});
