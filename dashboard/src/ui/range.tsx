// The time-range control of a page: presets, the whole run of a workload, or any range.
import { useState } from "preact/hooks";
import { t } from "../i18n/text";
import {
  MOST_DAYS,
  PRESETS,
  SHORTEST,
  choosePreset,
  chosenRange,
  presetOf,
  rangeName,
  resetZoom,
  zoomTo,
  type Range,
  type Run,
  type Span,
} from "../state/range";
import { useSession, type Zone } from "../state/session";
import { Choice } from "./components";
import { fieldTime, moment, parseFieldTime } from "./format";
import { Icon } from "./icons";
import { Popover, usePopover } from "./popover";

export function RangeChoice(props: {
  query: Record<string, string>;
  range: Range;
  /** The workload whose whole run is offered. */
  run?: Run;
  /** The shortest preset, and the one of a URL without any. */
  shortest?: Span;
  usual?: Span;
}) {
  const { zone } = useSession();
  const chosen = chosenRange(props.query);
  const options: (readonly [Span | "", string])[] = [
    ...PRESETS.slice(PRESETS.findIndex(([preset]) => preset === (props.shortest ?? "1h"))),
    ...(props.run?.start ? ([["run", t("Whole run")]] as const) : []),
  ];
  const usual = presetOf({}, props.run, props.usual);
  const span = chosen ? "" : presetOf(props.query, props.run, props.usual);
  return (
    <span class="page-tools range">
      {chosen && (
        <button class="button" onClick={resetZoom} title={t("Back to the preset")}>
          <Icon name="reset" /> {moment(chosen.start * 1000, zone)} –{" "}
          {moment(chosen.end * 1000, zone)}
        </button>
      )}
      <Choice
        label={t("Span")}
        value={span}
        options={options}
        onChange={(value) => value && choosePreset(value, usual)}
      />
      <AnyRange key={`${rangeName(props.query)} ${zone}`} range={props.range} zone={zone} />
    </span>
  );
}

function AnyRange(props: { range: Range; zone: Zone }) {
  const [from, setFrom] = useState(fieldTime(props.range.start * 1000, props.zone));
  const [to, setTo] = useState(fieldTime(props.range.end * 1000, props.zone));
  const [problem, setProblem] = useState("");
  const [menu, close] = usePopover();
  const apply = (event: Event) => {
    event.preventDefault();
    const [start, end] = [parseFieldTime(from, props.zone), parseFieldTime(to, props.zone)];
    if (Number.isNaN(start) || Number.isNaN(end)) setProblem(t("Enter both times."));
    else if (end - start < SHORTEST * 1000)
      setProblem(t("The end must be at least a minute after the start."));
    else if (end - start > MOST_DAYS * 86_400_000)
      setProblem(t("Choose at most {days} days.", { days: MOST_DAYS }));
    else {
      zoomTo(start / 1000, end / 1000);
      close();
    }
  };
  return (
    <Popover
      menu={menu}
      label={t("Choose any time range")}
      class="button"
      button={
        <>
          <Icon name="clock" /> {t("Range")}
        </>
      }
    >
      <form class="popover-body" onSubmit={apply}>
        <label>
          {t("From")}
          <input
            class="field"
            type="datetime-local"
            value={from}
            onInput={(event) => setFrom(event.currentTarget.value)}
          />
        </label>
        <label>
          {t("To")}
          <input
            class="field"
            type="datetime-local"
            value={to}
            onInput={(event) => setTo(event.currentTarget.value)}
          />
        </label>
        {problem && (
          <p class="small failed-words" role="alert">
            {problem}
          </p>
        )}
        <p class="muted small">
          {props.zone === "UTC" ? t("Times in UTC.") : t("Local times.")}{" "}
          {t("Drag over a chart to zoom.")}
        </p>
        <button class="button" type="submit">
          {t("Show")}
        </button>
      </form>
    </Popover>
  );
}
