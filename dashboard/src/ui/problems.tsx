// What could not be loaded on this page, once, with what to do; and the mark on all cards while offline.
import { useLive } from "../api/events";
import { rich, t } from "../i18n/text";
import { offlineSince, summarize, useProblems } from "../state/problems";
import { useSession } from "../state/session";
import { moment } from "./format";
import { Icon } from "./icons";

/** Return since when the cards show old data, in milliseconds; null while the server answers. */
export function useOffline(): number | null {
  const { state, heardAt } = useLive();
  const since = offlineSince(useProblems());
  return since ?? (state === "lost" && heardAt ? heardAt : null);
}

/** Return the style of the page: while offline every card is marked with the time of its data. */
export function useStaleMark(): { class: string; style?: Record<string, string> } {
  const { zone } = useSession();
  const since = useOffline();
  if (since === null) return { class: "main" };
  return {
    class: "main offline",
    style: { "--stale": JSON.stringify(t("as of {time}", { time: moment(since, zone, true) })) },
  };
}

export function ProblemList() {
  const list = useProblems();
  if (!list.length) return null;
  const reload = () => list.forEach((problem) => problem.reload());
  return (
    <div class="banner bad problems" role="alert">
      <Icon name="alert" />
      <div class="grow">
        {summarize(list).map((problem) => (
          <p key={problem.text}>
            <strong>
              {t("Not everything could be loaded: {reason}.", { reason: problem.text })}
            </strong>{" "}
            <span>{problem.remedy}</span>
            {problem.trace && (
              <> {rich("Trace {trace}", { trace: <code>{problem.trace.slice(0, 12)}</code> })}</>
            )}
          </p>
        ))}
      </div>
      <button class="button" onClick={reload}>
        {t("Try again")}
      </button>
    </div>
  );
}
