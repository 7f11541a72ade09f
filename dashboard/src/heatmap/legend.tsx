// The legend of the map: the scale of a metric, or the most frequent teams or workloads, and the states.
import { css } from "../charts/colours";
import { t } from "../i18n/text";
import { setQuery } from "../state/route";
import { count, span } from "../ui/format";
import { CORDONED, DRAINING, NONE, UNCHECKED, type Colouring } from "./colouring";

const STEPS = 24;
const PATTERNS: Record<number, string> = {
  [NONE]: "hatched",
  [UNCHECKED]: "hatched",
  [DRAINING]: "striped",
  [CORDONED]: "barred",
};

export function Legend(props: { colouring: Colouring; selectable: boolean }) {
  const { scale, entries, more } = props.colouring;
  const label = (value: number) => (scale?.unit === "s" ? span(value) : count(value));
  return (
    <div class="heat-legend small muted">
      {scale && (
        <>
          <span class="num">{label(scale.low)}</span>
          <span class="ramp" aria-hidden="true">
            {Array.from({ length: STEPS }, (_, step) => (
              <span key={step} style={{ background: css(scale.colour(step / (STEPS - 1))) }} />
            ))}
          </span>
          <span class="num">
            {scale.unit === "s"
              ? t("{age} old", { age: label(scale.high) })
              : `${label(scale.high)} ${scale.unit}`}
          </span>
        </>
      )}
      {entries.map((entry) => {
        const inside = (
          <>
            <span
              class={`swatch ${PATTERNS[entry.state ?? -1] ?? ""}`}
              style={{ backgroundColor: css(entry.colour) }}
            />{" "}
            {entry.name} <span class="num">{count(entry.count)}</span>
          </>
        );
        return props.selectable && entry.state === undefined ? (
          <button
            type="button"
            class="key linkish"
            key={entry.name}
            title={t("Highlight {name}", entry)}
            onClick={() => setQuery({ find: entry.name.split("/").at(-1) })}
          >
            {inside}
          </button>
        ) : (
          <span class="key" key={entry.name}>
            {inside}
          </span>
        );
      })}
      {more > 0 && <span>{t("and {more} more", { more })}</span>}
    </div>
  );
}
