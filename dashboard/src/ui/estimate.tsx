// When a waiting unit is expected to start.
import type { StartEstimate } from "../api/types";
import { rich, t } from "../i18n/text";
import { useSession } from "../state/session";
import { moment, span } from "./format";
import { useNow } from "./components";

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
        ? rich("Expected to start in {time}, at {moment}.", {
            time: <b class="num">{until(expectedStart)}</b>,
            moment: moment(Date.parse(expectedStart), zone),
          })
        : t("When it starts is not known: {reason}.", { reason: waitsFor })}
      {expectedStart && earliestStart && latestStart && (
        <span class="muted">
          {" "}
          {t("(90%: in {from} to {to})", { from: until(earliestStart), to: until(latestStart) })}
        </span>
      )}{" "}
      {expectedStart && t("It waits for {reason}.", { reason: waitsFor })}
    </p>
  );
}
