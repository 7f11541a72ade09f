// Filters of a list, kept in the URL: one select for each field with values, "Mine", and a button that clears all.
import type { Me } from "../api/types";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { setQuery } from "../state/route";
import { Select } from "./components";

export interface Field {
  /** The query parameter. */
  name: string;
  label: string;
  any: string;
  options: readonly string[];
  words?: Record<string, string>;
}

/** Set a filter and return to the first page. */
export function setFilter(name: string, value: string): void {
  setQuery({ [name]: value || undefined, page: undefined });
}

/** Selects for all fields that have a choice, or that the URL sets. */
export function FilterFields(props: { query: Record<string, string>; fields: Field[] }) {
  return (
    <>
      {props.fields
        .filter((field) => field.options.length > 1 || props.query[field.name])
        .map((field) => (
          <Select
            key={field.name}
            label={field.label}
            value={props.query[field.name] ?? ""}
            any={field.any}
            options={field.options}
            {...(field.words ? { words: field.words } : {})}
            onChange={(value) => setFilter(field.name, value)}
          />
        ))}
    </>
  );
}

/** Show only what belongs to the caller; nothing on a server without login. */
export function Mine(props: { user: string }) {
  const { data } = useResource<Me>("auth/me");
  const me = data?.user;
  if (!me) return null;
  const on = props.user === me;
  return (
    <button
      type="button"
      class={`button ${on ? "pressed" : ""}`}
      aria-pressed={on}
      onClick={() => setFilter("user", on ? "" : me)}
    >
      {t("Mine")}
    </button>
  );
}

export function ClearFilters(props: { query: Record<string, string>; names: readonly string[] }) {
  if (!props.names.some((name) => props.query[name])) return null;
  return (
    <button
      type="button"
      class="button ghost"
      onClick={() =>
        setQuery(Object.fromEntries([...props.names, "page"].map((name) => [name, undefined])))
      }
    >
      {t("Clear")}
    </button>
  );
}
