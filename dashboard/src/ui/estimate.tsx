// When a waiting unit is expected to start.
import type { StartEstimate } from "../api/types";
import { useSession } from "../state/session";
import { moment, span } from "./format";
import { useNow } from "./components";

/** Return the sentence of an estimate: position, expected start and its interval. */
export function Estimate(props: { estimate: StartEstimate }) {
  const { zone } = useSession();
  const now = useNow(30_000);
  const { position, expectedStart, earliestStart, latestStart } = props.estimate;
  const until = (text: string) => span(Math.max(0, (Date.parse(text) - now) / 1000));
  return (
    <p class="soft">
      Position <b class="num">{position}</b> in the queue.{" "}
      {expectedStart ? (
        <>
          Expected to start in <b class="num">{until(expectedStart)}</b>, at{" "}
          {moment(Date.parse(expectedStart), zone)}
          {earliestStart && latestStart && (
            <span class="muted">
              {" "}
              (90%: in {until(earliestStart)} to {until(latestStart)})
            </span>
          )}
          .
        </>
      ) : (
        "When it starts is not known."
      )}
    </p>
  );
}
