// Mistakes of translations that can be found mechanically: punctuation, spaces, register, and terms.
import { describe, expect, test } from "vitest";
import ja from "../src/i18n/ja";
import zh from "../src/i18n/zh";
import { GLOSSARY } from "./glossary";

type Texts = Readonly<Record<string, string>>;
const LANGUAGES: [name: "zh" | "ja", texts: Texts][] = [
  ["zh", zh],
  ["ja", ja],
];
const CJK = String.raw`[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}ー々]`;
const HALF_WIDTH = new RegExp(`${CJK} ?[,;:!?(]|[,;:!?)] ?${CJK}|\\.\\.\\.|['"]`, "u");
const CLOSE = new RegExp(`${CJK}[A-Za-z0-9]|[A-Za-z0-9%]${CJK}`, "u");
const APART = new RegExp(`${CJK} [A-Za-z0-9]|[A-Za-z0-9%] ${CJK}`, "u");
/** A full stop, a colon before what follows, or a single word. */
const END = /(。|：|^.{1,2})$/u;
const POLITE = /(です|ます|ません|ました|でした|ください|[\p{Pe}}])。/u;

/** Return the texts for which something is wrong. */
function wrong(texts: Texts, isWrong: (text: string, english: string) => boolean): string[] {
  return Object.entries(texts)
    .filter(([english, text]) => isWrong(text, english))
    .map(([english, text]) => `${english} → ${text}`);
}

function sentences(text: string): string[] {
  return text.match(/[^。]*。/gu) ?? [];
}

describe.each(LANGUAGES)("the texts in %s", (name, texts) => {
  test("have full-width punctuation", () => {
    expect(wrong(texts, (text) => HALF_WIDTH.test(text))).toEqual([]);
  });

  test("end with a full stop where the English text does", () => {
    const isWrong = (text: string, english: string) =>
      english.endsWith(".") ? !END.test(text) : text.endsWith("。");
    expect(wrong(texts, isWrong)).toEqual([]);
  });

  test.each(GLOSSARY)("have one term for $english", ({ english, [name]: term }) => {
    expect(
      wrong(
        texts,
        (text, key) => english.test(withoutNames(key)) && !term.test(text) && !/など|等/.test(text),
      ),
    ).toEqual([]);
    expect(Object.keys(texts).some((key) => english.test(key))).toBe(true);
  });
});

/** Return an English text without its placeholders, whose names are no words. */
function withoutNames(english: string): string {
  return english.replace(/\{\w+\}/g, "{}");
}

test("Chinese has a space between ideographs and Latin letters or digits, and addresses nobody", () => {
  expect(wrong(zh, (text) => CLOSE.test(text) || /[您你]/.test(text))).toEqual([]);
});

test("Japanese has no such space, and its sentences are polite", () => {
  expect(wrong(ja, (text) => APART.test(text))).toEqual([]);
  expect(wrong(ja, (text) => sentences(text).some((each) => !POLITE.test(each)))).toEqual([]);
});
