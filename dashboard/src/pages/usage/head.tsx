// The controls of the usage page: grouping, days, and the way back from a namespace or workload.
import { useState } from "preact/hooks";
import { t } from "../../i18n/text";
import { setQuery } from "../../state/route";
import { Choice, Select } from "../../ui/components";
import { problemOf, type Days } from "../period";
import { GROUPS, PERIODS, type Group, type Period, type Query } from "./query";

export function Grouping(props: { by: Group; keys: string[] | undefined; chosen: string }) {
  return (
    <>
      <Choice
        label={t("Group by")}
        value={props.by}
        options={GROUPS}
        onChange={(value) =>
          setQuery({
            by: value === "namespace" ? undefined : value,
            key: undefined,
            page: undefined,
            ns: undefined,
            name: undefined,
          })
        }
      />
      {!!props.keys?.length && (
        <Select
          label={t("Key")}
          value={props.chosen}
          options={props.keys}
          onChange={(value) => setQuery({ key: value })}
        />
      )}
    </>
  );
}

export function PeriodChoice(props: { query: Query; days: Days }) {
  const { query, days } = props;
  const period = (query["period"] ?? "7d") as Period;
  const choose = (value: Period) =>
    setQuery({
      period: value === "7d" ? undefined : value,
      month: undefined,
      page: undefined,
      waste: undefined,
      from: value === "dates" ? days.first : undefined,
      to: value === "dates" ? days.last : undefined,
    });
  return (
    <>
      <Choice label={t("Period")} value={period} options={PERIODS} onChange={choose} />
      {period === "month" && (
        <input
          class="field"
          type="month"
          aria-label={t("Month")}
          value={query["month"] ?? days.first.slice(0, 7)}
          onInput={(event) =>
            event.currentTarget.value && setQuery({ month: event.currentTarget.value })
          }
        />
      )}
      {period === "dates" && <Dates key={`${days.first} ${days.last}`} days={days} />}
    </>
  );
}

/** Two days; only valid ones are shown, and what is wrong with others stands beside them. */
function Dates(props: { days: Days }) {
  const [days, setDays] = useState(props.days);
  const problem = problemOf(days);
  const change = (next: Days) => {
    setDays(next);
    if (!problemOf(next)) setQuery({ from: next.first, to: next.last, page: undefined });
  };
  const field = (label: string, name: keyof Days) => (
    <input
      class="field"
      type="date"
      aria-label={label}
      aria-invalid={problem !== ""}
      value={days[name]}
      onInput={(event) => change({ ...days, [name]: event.currentTarget.value })}
    />
  );
  return (
    <span class="dates">
      {field(t("First day"), "first")} – {field(t("Last day"), "last")}
      {problem && (
        <span class="small failed-words" role="alert">
          {problem}
        </span>
      )}
    </span>
  );
}

/** The way back: all namespaces, a namespace, a workload. */
export function Crumbs(props: { query: Query }) {
  const { ns, name } = props.query;
  if (!ns && !name) return null;
  const top = () =>
    setQuery({ ns: undefined, name: undefined, by: undefined, page: undefined }, true);
  return (
    <nav class="crumbs" aria-label={t("Breadcrumb")}>
      <button class="linkish accent" onClick={top}>
        {t("All namespaces")}
      </button>
      {ns && <span aria-hidden="true">›</span>}
      {ns &&
        (name ? (
          <button
            class="linkish accent"
            onClick={() => setQuery({ name: undefined, page: undefined }, true)}
          >
            {ns}
          </button>
        ) : (
          <strong>{ns}</strong>
        ))}
      {name && <span aria-hidden="true">›</span>}
      {name && <strong>{name.split("/").slice(1).join("/")}</strong>}
    </nav>
  );
}
