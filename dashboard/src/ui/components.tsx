// Components shared by all pages.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "../api/client";
import { t } from "../i18n/text";
import type { Resource } from "../state/resource";
import { useSession } from "../state/session";
import { stateText } from "../i18n/states";
import { ago, bothZones, moment, percent } from "./format";
import { Icon, type IconName } from "./icons";
import { TableCsv } from "./export";
import { Views } from "./views";

export function Card(props: {
  title?: ComponentChildren;
  aside?: ComponentChildren;
  class?: string;
  flush?: boolean;
  note?: ComponentChildren;
  /** Address of the whole list, where the table has one page of it. */
  csv?: string | undefined;
  children: ComponentChildren;
}) {
  return (
    <section class={`card ${props.flush ? "flush" : ""} ${props.class ?? ""}`}>
      {props.title && (
        <header class="card-head">
          <h2>{props.title}</h2>
          {props.note && <span class="muted small">{props.note}</span>}
          <div class="spacer" />
          {props.aside}
          {props.flush && <TableCsv address={props.csv} />}
        </header>
      )}
      <div class="card-body">{props.children}</div>
    </section>
  );
}

export function PageHead(props: {
  title: ComponentChildren;
  sub?: ComponentChildren;
  children?: ComponentChildren;
}) {
  return (
    <header class="page-head">
      <div class="page-title">
        <h1>{props.title}</h1>
        {props.sub && <p class="muted">{props.sub}</p>}
      </div>
      <div class="page-tools">
        {props.children}
        <Views />
      </div>
    </header>
  );
}

export function Empty(props: { icon?: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={props.icon ?? "inbox"} />
      <p class="empty-title">{props.title}</p>
      {props.children && <p class="muted small">{props.children}</p>}
    </div>
  );
}

/** Say that there is no data. The reason is at the top of the page, once for all cards; a missing object has none. */
export function LoadError(props: { error: ApiError; missing?: string }) {
  const { error } = props;
  if (error.missing) return <Empty icon="plug" title={props.missing ?? error.message} />;
  return (
    <div class="empty failed">
      <Icon name="alert" />
      <p class="empty-title">{t("Not loaded")}</p>
      <p class="muted small">{t("The reason is at the top of the page.")}</p>
    </div>
  );
}

/** Show the data of a resource, a skeleton while it loads, or the error. */
export function Loaded<T>(props: {
  of: Resource<T>;
  missing?: string;
  lines?: number;
  children: (data: T) => ComponentChildren;
}) {
  const { data, error, at } = props.of;
  if (data !== undefined) {
    return (
      <>
        {error && <StaleNote at={at} />}
        {props.children(data)}
      </>
    );
  }
  if (error)
    return <LoadError error={error} {...(props.missing ? { missing: props.missing } : {})} />;
  return <Skeleton lines={props.lines ?? 4} />;
}

export function StaleNote(props: { at: number; error?: ApiError }) {
  const now = useNow(5000);
  return (
    <p class="stale">
      <Icon name="clock" /> {t("Last updated {time}", { time: ago(props.at, now) })}
    </p>
  );
}

export function Skeleton(props: { lines: number }) {
  return (
    <div class="skeleton" role="status" aria-busy="true" aria-label={t("Loading")}>
      {Array.from({ length: props.lines }, (_, line) => (
        <div key={line} class="skeleton-line" />
      ))}
    </div>
  );
}

/** Return the current time, updated every `period` milliseconds. */
export function useNow(period: number): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), period);
    return () => clearInterval(timer);
  }, [period]);
  return now;
}

/** Show how long ago a time in milliseconds was, with both time zones on hover. */
export function Ago(props: { at: number }) {
  const now = useNow(10_000);
  return (
    <time dateTime={new Date(props.at).toISOString()} title={bothZones(props.at)}>
      {ago(props.at, now)}
    </time>
  );
}

export function When(props: { at: number; seconds?: boolean }) {
  const { zone } = useSession();
  return (
    <time dateTime={new Date(props.at).toISOString()} title={bothZones(props.at)}>
      {moment(props.at, zone, props.seconds)}
    </time>
  );
}

export type Tone = "good" | "warn" | "bad" | "info" | "idle";

const TONES: Record<string, Tone> = {
  Running: "good",
  Completed: "info",
  Failed: "bad",
  Pending: "warn",
  Unknown: "idle",
  Healthy: "good",
  Unhealthy: "bad",
  healthy: "good",
  faulty: "bad",
  busy: "info",
  partial: "good",
  idle: "idle",
  cordoned: "warn",
  draining: "warn",
  gone: "idle",
  Deleted: "idle",
  Bound: "good",
  Allocated: "good",
};

export function Badge(props: { word: string; tone?: Tone }) {
  const tone = props.tone ?? TONES[props.word] ?? "idle";
  return <span class={`badge ${tone}`}>{stateText(props.word)}</span>;
}

/** Show a rate of 0–1 as a number and a bar. */
export function Meter(props: { rate: number | null | undefined; label?: string }) {
  const rate = props.rate;
  const words = percent(rate);
  return (
    <span
      class="meter"
      role="img"
      aria-label={`${props.label ?? t("utilization")} ${rate == null ? t("not measured") : words}`}
    >
      <span class="num">{words}</span>
      <span class="meter-track">
        <span class="meter-fill" style={{ width: `${Math.min(100, (rate ?? 0) * 100)}%` }} />
      </span>
    </span>
  );
}

/** As in every group of radio buttons, Tab goes to the chosen one and arrows choose another. */
const STEPS: Record<string, number> = {
  ArrowRight: 1,
  ArrowDown: 1,
  ArrowLeft: -1,
  ArrowUp: -1,
};

export function Choice<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  const chosen = Math.max(
    0,
    props.options.findIndex(([value]) => value === props.value),
  );
  const onKey = (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const { length } = props.options;
    const next = (chosen + step + length) % length;
    const group = event.currentTarget as HTMLElement;
    props.onChange((props.options[next] as readonly [T, string])[0]);
    group.querySelectorAll("button")[next]?.focus();
  };
  return (
    <div class="choice" role="radiogroup" aria-label={props.label} onKeyDown={onKey}>
      {props.options.map(([value, words], place) => (
        <button
          key={value}
          type="button"
          role="radio"
          tabIndex={place === chosen ? 0 : -1}
          aria-checked={value === props.value}
          class={value === props.value ? "on" : ""}
          onClick={() => props.onChange(value)}
        >
          {words}
        </button>
      ))}
    </div>
  );
}

export function Select(props: {
  label: string;
  value: string;
  any?: string;
  options: readonly string[];
  /** What is shown for an option; the option itself by default. */
  words?: Record<string, string>;
  onChange: (value: string) => void;
}) {
  const options =
    props.value && !props.options.includes(props.value)
      ? [props.value, ...props.options]
      : props.options;
  return (
    <label class={`select ${props.value && props.any !== undefined ? "set" : ""}`}>
      <select
        aria-label={props.label}
        value={props.value}
        onChange={(event) => props.onChange(event.currentTarget.value)}
      >
        {props.any !== undefined && <option value="">{props.any}</option>}
        {options.map((option) => (
          <option key={option} value={option}>
            {props.words?.[option] ?? option}
          </option>
        ))}
      </select>
      <Icon name="down" />
    </label>
  );
}

/** A text filter, debounced while typing. */
export function Search(props: { label: string; value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(props.value);
  useEffect(() => setText(props.value), [props.value]);
  useEffect(() => {
    if (text === props.value) return;
    const timer = setTimeout(() => props.onChange(text), 250);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label class="search">
      <Icon name="search" />
      <span class="sr">{props.label}</span>
      <input
        type="search"
        data-find
        placeholder={props.label}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <kbd aria-hidden="true">/</kbd>
    </label>
  );
}

export function Pager(props: {
  page: number;
  size: number;
  total: number;
  onChange: (page: number) => void;
  /** What is shown before the page numbers. */
  children?: ComponentChildren;
}) {
  const last = Math.max(1, Math.ceil(props.total / props.size));
  if (props.page > last)
    return (
      <nav class="pager" aria-label={t("Pages")}>
        <span class="muted small num">{t("There is no page {page}: {total} in all.", props)}</span>
        <button class="button" onClick={() => props.onChange(last)}>
          {t("Last page")}
        </button>
      </nav>
    );
  const from = props.total ? (props.page - 1) * props.size + 1 : 0;
  const to = Math.min(props.total, props.page * props.size);
  return (
    <nav class="pager" aria-label={t("Pages")}>
      {props.children}
      <span class="muted small num">
        {t("{from}–{to} of {total}", { from, to, total: props.total })}
      </span>
      <button
        class="button icon"
        disabled={props.page <= 1}
        aria-label={t("Previous page")}
        onClick={() => props.onChange(props.page - 1)}
      >
        <Icon name="left" />
      </button>
      <button
        class="button icon"
        disabled={props.page >= last}
        aria-label={t("Next page")}
        onClick={() => props.onChange(props.page + 1)}
      >
        <Icon name="right" />
      </button>
    </nav>
  );
}

/** Make a whole table row open a page; links and buttons in it keep their own effect. */
export function rowLink(href: string): { class: string; onClick: (event: MouseEvent) => void } {
  return {
    class: "clickable",
    onClick: (event) => {
      const target = event.target as HTMLElement;
      const selecting = (getSelection()?.toString() ?? "") !== "";
      if (!target.closest("a, button, input, select, label") && !selecting) location.hash = href;
    },
  };
}

export function KeyValues(props: { of: Record<string, string> }) {
  const rows = Object.entries(props.of);
  if (!rows.length) return <p class="muted small">{t("None.")}</p>;
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value || <span class="muted">{t("empty")}</span>}</dd>
        </div>
      ))}
    </dl>
  );
}
