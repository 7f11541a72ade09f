// What operators say about a node: acknowledge, silence, resume.
import { useState } from "preact/hooks";
import { ApiError, addressOf, send } from "../api/client";
import { t } from "../i18n/text";
import { useSession } from "../state/session";
import { list, moment } from "../ui/format";

const SILENCE_SECONDS = 7200;

type Verb = "acknowledge" | "silence" | "resume";

export function NodeActions(props: {
  node: string;
  cluster: string | undefined;
  resume?: boolean;
  onDone: () => void;
}) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const change = async (verb: Verb, body: object) => {
    setBusy(true);
    setError("");
    try {
      const path = `api/repairs/${encodeURIComponent(props.node)}/${verb}`;
      await send(addressOf(path, { cluster: props.cluster }), body);
      props.onDone();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem.message : String(problem));
    } finally {
      setBusy(false);
    }
  };
  return (
    <div class="row-actions">
      <button
        type="button"
        class="button small"
        disabled={busy}
        title={t("No more alerts about the present findings of {node}", props)}
        onClick={() => void change("acknowledge", {})}
      >
        {t("Acknowledge")}
      </button>
      <button
        type="button"
        class="button small"
        disabled={busy}
        title={t("No alerts about {node} for two hours", props)}
        onClick={() => void change("silence", { seconds: SILENCE_SECONDS })}
      >
        {t("Silence 2 h")}
      </button>
      {props.resume && (
        <button
          type="button"
          class="button small primary"
          disabled={busy}
          title={t("Test {node}, and return it if it passes", props)}
          onClick={() => void change("resume", {})}
        >
          {t("Test and return")}
        </button>
      )}
      {error && (
        <span class="small failed-words" role="alert">
          {error}
        </span>
      )}
    </div>
  );
}

export function OperatorNote(props: {
  of: { acknowledgedBy?: string; silencedUntil?: string | null };
}) {
  const { zone } = useSession();
  const until = props.of.silencedUntil ? Date.parse(props.of.silencedUntil) : 0;
  const notes = [
    props.of.acknowledgedBy ? t("acknowledged by {name}", { name: props.of.acknowledgedBy }) : "",
    until > Date.now() ? t("silenced until {time}", { time: moment(until, zone) }) : "",
  ].filter(Boolean);
  return notes.length ? <div class="muted small">{list(notes)}</div> : null;
}
