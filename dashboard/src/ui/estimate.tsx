// When a waiting unit is expected to start.
import type { StartEstimate } from "../api/types";
import { rich, t } from "../i18n/text";
import { useSession, type Zone } from "../state/session";
import { moment, span } from "./format";
import { useNow } from "./components";

/** Return in what time something starts: by its estimate, or `expected` in milliseconds. */
export function startText(
  waiting: { expected: number | null; estimate?: StartEstimate | undefined; claimed?: boolean },
  now: number,
): string {
  if (waiting.expected !== null)
    return t("in {time}", { time: span(Math.max(0, (waiting.expected - now) / 1000)) });
  return waiting.claimed && !waiting.estimate ? t("not estimated yet") : t("start unknown");
}

/** When something is expected to start, in milliseconds; nothing if that is not known. */
export function Expected(props: { at: number | null }) {
  const { zone } = useSession();
  const now = useNow(30_000);
  if (props.at === null) return null;
  return <p class="soft">{expectedText(props.at, now, zone)}</p>;
}

function expectedText(at: number, now: number, zone: Zone) {
  return rich("Expected to start in {time}, at {moment}.", {
    time: <b class="num">{span(Math.max(0, (at - now) / 1000))}</b>,
    moment: moment(at, zone),
  });
}

/** Return the sentence of an estimate: position, expected start and its interval. */
export function Estimate(props: { estimate: StartEstimate }) {
  const { zone } = useSession();
  const now = useNow(30_000);
  const { position, waitsFor, expectedStart, earliestStart, latestStart } = props.estimate;
  const until = (text: string) => span(Math.max(0, (Date.parse(text) - now) / 1000));
  return (
    <p class="soft">
      {rich("Position {position} in the queue.", { position: <b class="num">{position}</b> })}{" "}
      {expectedStart
        ? expectedText(Date.parse(expectedStart), now, zone)
        : t("When it starts is not known.")}
      {expectedStart && earliestStart && latestStart && (
        <span class="muted">
          {" "}
          {t("(90%: in {from} to {to})", { from: until(earliestStart), to: until(latestStart) })}
        </span>
      )}{" "}
      {t("It waits for {reason}.", { reason: waitsFor })}
    </p>
  );
}
