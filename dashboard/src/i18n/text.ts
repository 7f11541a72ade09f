// The texts of the page. The English text is the key of its translations in `zh.ts` and `ja.ts`; English loads neither.
import type { ComponentChildren } from "preact";
import { language, locale, type Language } from "./language";

export type Dictionary = Readonly<Record<string, string>>;

const LOADERS: Record<Exclude<Language, "en">, () => Promise<{ default: Dictionary }>> = {
  zh: () => import("./zh"),
  ja: () => import("./ja"),
};

let dictionary: Dictionary = {};

/** Load the texts of the page's language, before the first of them is used. */
export async function loadTexts(): Promise<void> {
  if (language === "en") return;
  try {
    dictionary = (await LOADERS[language]()).default;
  } catch {
    // The server was updated, or the network is gone: the page is in English.
  }
}

const rules = new Intl.PluralRules(locale);
const numbers = new Intl.NumberFormat(locale);

/** The names of the placeholders in a text: "count" in "{count} GPUs". */
type Names<S extends string> = S extends `${string}{${infer Name}}${infer Rest}`
  ? Name | Names<Rest>
  : never;
type Values<Name extends string, V> = [Name] extends [never] ? [] : [values: Record<Name, V>];

/** Return a text in the language of the page. Numbers are formatted by locale. */
export function t<const S extends string>(
  text: S,
  ...[values]: Values<Names<S>, string | number>
): string {
  return parts(text, values).join("");
}

/** Return the form of a text for a number, which is its placeholder `{n}`. */
export function plural<const S extends string>(
  n: number,
  one: string,
  other: S,
  ...[values]: Values<Exclude<Names<S>, "n">, string | number>
): string {
  // Other languages have no entry for the singular: their rules never ask for it.
  return parts(rules.select(n) === "one" ? one : other, { ...values, n }).join("");
}

/** Return a text whose values are elements. */
export function rich<const S extends string>(
  text: S,
  ...[values]: Values<Names<S>, ComponentChildren>
): ComponentChildren[] {
  return parts<ComponentChildren>(text, values);
}

function parts<V>(text: string, values: Readonly<Record<string, V>> = {}): (V | string)[] {
  // Every second piece is the name of a placeholder.
  return (dictionary[text] ?? text).split(/\{(\w+)\}/).map((piece, place) => {
    const value = place % 2 ? (values[piece] as V) : piece;
    return typeof value === "number" ? numbers.format(value) : value;
  });
}
