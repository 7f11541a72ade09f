// The demand of the next days with its 90% interval, after what was allocated until now.
import { useMemo } from "preact/hooks";
import type { Forecast, Report } from "../../api/types";
import type { Overlay } from "../../charts/align";
import { Lines } from "../../charts/lines";
import { t } from "../../i18n/text";
import { useSession } from "../../state/session";
import type { Resource } from "../../state/resource";
import { Card, Empty, Loaded } from "../../ui/components";
import { count, list, money, short, weekday } from "../../ui/format";
import { stackedLines, totalLine } from "../report";

type Group = Forecast["data"][number];

export const FORECAST_DAYS = 14;

export function ForecastCard(props: {
  forecast: Resource<Forecast>;
  /** The namespace; empty for all. */
  name: string;
  report: Report;
  of: string;
}) {
  return (
    <Card
      title={t("Forecast")}
      note={t("GPUs wanted by {who}, with a 90% interval", { who: props.of })}
    >
      <Loaded of={props.forecast} missing={t("This server has no forecasts")}>
        {(data) => (
          <Chart
            group={data.data.find((group) => group.name === props.name)}
            report={props.report}
            of={props.of}
          />
        )}
      </Loaded>
    </Card>
  );
}

function Chart(props: { group: Group | undefined; report: Report; of: string }) {
  const { group, report } = props;
  const { zone } = useSession();
  const points = group?.points ?? [];
  const shown = useMemo(() => {
    const past = report.series?.step === "hour" ? totalLine(stackedLines(report)) : [];
    const at = (time: string) => Date.parse(time);
    const overlays: Overlay[] = [
      {
        name: t("low"),
        band: "low",
        colour: "--accent",
        points: points.map((point) => [point.low, at(point.time)] as const),
      },
      {
        name: t("high"),
        band: "high",
        colour: "--accent",
        points: points.map((point) => [point.high, at(point.time)] as const),
      },
      {
        name: t("expected"),
        colour: "--accent",
        dash: true,
        points: points.map((point) => [point.expected, at(point.time)] as const),
      },
    ];
    const times = [...past.map(([, time]) => time), ...points.map((point) => at(point.time))];
    const ends = [Math.min(...times), Math.max(...times)];
    if (group?.capacity)
      overlays.push({
        name: t("GPUs in the cluster"),
        colour: "--bad",
        dash: true,
        points: ends.map((time) => [group.capacity ?? 0, time] as const),
      });
    const lines = past.length ? [{ name: t("allocated"), points: past }] : [];
    return { lines, overlays, from: (ends[0] ?? 0) / 1000, to: (ends[1] ?? 0) / 1000 };
  }, [group, report]);
  return (
    <>
      {points.length ? (
        <>
          <p class="soft forecast-words">{sentence(group as Group, report, zone)}</p>
          <Lines
            lines={shown.lines}
            overlays={shown.overlays}
            label={t("Forecast of the demand of {who}", { who: props.of })}
            height={220}
            format={short}
            from={shown.from}
            to={shown.to}
          />
        </>
      ) : (
        <Empty icon="clock" title={t("No forecast yet")}>
          {t("It needs three days of recorded allocations.")}
        </Empty>
      )}
    </>
  );
}

function sentence(group: Group, report: Report, zone: "local" | "UTC"): string {
  const days = Math.round(group.points.length / 24);
  const hours = group.points.reduce((sum, point) => sum + point.expected, 0);
  const { allocated_gpu_hours: used, cost, ...rest } = report.totals;
  const price = used && cost > 0 ? cost / used : 0;
  const amounts = [
    t("{hours} GPU hours", { hours: count(hours) }),
    price &&
      t("about {cost} at this period's mean price", {
        cost: money(hours * price, report.currency),
      }),
    rest.energy_kwh && used && `${count((hours * rest.energy_kwh) / used)} kWh`,
  ].filter((each): each is string => typeof each === "string");
  const day = (text: string) => weekday(Date.parse(text), zone);
  return [
    t("Expected in the next {days} days: {amounts}.", { days, amounts: list(amounts) }),
    group.capacityExceeded
      ? t("It exceeds the GPUs of the cluster on {day}.", { day: day(group.capacityExceeded) })
      : group.capacityExceededEarliest
        ? t("It may exceed the GPUs of the cluster from {day} on.", {
            day: day(group.capacityExceededEarliest),
          })
        : "",
  ]
    .filter(Boolean)
    .join(" ");
}
