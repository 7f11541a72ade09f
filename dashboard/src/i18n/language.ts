// The language of the page: the one that was chosen in the page, or else the first of the browser's that it speaks.
import { remember, remembered } from "../state/storage";

export const LANGUAGES = { en: "English", zh: "简体中文", ja: "日本語" } as const;
export type Language = keyof typeof LANGUAGES;

/** The locales of numbers and dates. */
const LOCALES: Record<Language, string> = { en: "en-GB", zh: "zh-CN", ja: "ja-JP" };
const KEY = "gpufleet.language";

/** Return the chosen language, or else the first of `wanted` that there is, or else English. */
export function languageOf(chosen: string, wanted: readonly string[]): Language {
  return [chosen, ...wanted].map(known).find((language) => language !== null) ?? "en";
}

function known(tag: string): Language | null {
  if (!tag) return null;
  const { language, script } = new Intl.Locale(tag).maximize();
  if (script === "Hant") return null; // the Chinese texts are simplified
  return Object.keys(LANGUAGES).find((each): each is Language => each === language) ?? null;
}

/** Keep the choice and load the page in that language. */
export function chooseLanguage(language: Language): void {
  remember(KEY, language);
  location.reload();
}

// Unit tests have no document and run in English, whatever the language of the machine.
const wanted = typeof document === "undefined" ? [] : navigator.languages;
export const language = languageOf(remembered(KEY), wanted);
export const locale = LOCALES[language];
