import { afterEach, describe, expect, test, vi } from "vitest";
import ja from "../src/i18n/ja";
import { languageOf } from "../src/i18n/language";
import { midSentence } from "../src/i18n/states";
import { plural, rich, t } from "../src/i18n/text";
import zh from "../src/i18n/zh";
import { bareTexts, keysOf, pageSources } from "./source_texts";

const found = pageSources.map(([path, source]) => keysOf(path, source));
const keys = [...new Set(found.flatMap((each) => each.keys))].sort();

function placeholders(text: string): string[] {
  return [...text.matchAll(/\{\w+\}/g)].map(([name]) => name).sort();
}

describe.each([
  ["zh", zh],
  ["ja", ja],
])("the dictionary %s", (_, dictionary: Record<string, string>) => {
  test("has every text of the page and no other", () => {
    expect(Object.keys(dictionary).sort()).toEqual(keys);
  });

  test("has the placeholders of the English texts", () => {
    for (const [key, text] of Object.entries(dictionary)) {
      expect(placeholders(text), key).toEqual(placeholders(key));
      expect(text.trim(), key).not.toBe("");
    }
  });
});

describe("the sources", () => {
  test("have hundreds of texts, all of them literals", () => {
    expect(keys.length).toBeGreaterThan(500);
    expect(found.flatMap((each) => each.computed)).toEqual([]);
  });

  test("show no text that has no translation", () => {
    expect(pageSources.flatMap(([path, source]) => bareTexts(path, source))).toEqual([]);
  });

  test.each([
    "<p>Some text</p>",
    '<p title="Some text" />',
    '<p>{busy ? "Some text" : ""}</p>',
    "<p>{`Some text ${name}`}</p>",
    'const field = { label: "Some text" };',
  ])("that bypass the translations are found: %s", (source) => {
    expect(bareTexts("page.tsx", source)).toEqual(["page.tsx: Some text"]);
  });
});

describe("the language", () => {
  test("is the chosen one, or the first of the browser that there is", () => {
    expect(languageOf("ja", ["zh-CN"])).toBe("ja");
    expect(languageOf("", ["de-DE", "zh-CN", "en"])).toBe("zh");
    expect(languageOf("", ["ja-JP", "en"])).toBe("ja");
    expect(languageOf("", ["en-US", "zh-CN"])).toBe("en");
    expect(languageOf("", ["de-DE"])).toBe("en");
    expect(languageOf("", [])).toBe("en");
  });

  test("is not simplified Chinese for readers of traditional Chinese only", () => {
    expect(languageOf("", ["zh-TW", "ja"])).toBe("ja");
    expect(languageOf("", ["zh-Hant-HK", "en"])).toBe("en");
    expect(languageOf("", ["zh-TW", "zh"])).toBe("zh");
  });
});

test("English texts have values, plural forms and elements", () => {
  expect(t("{share} of {all}", { share: "5%", all: 41_200 })).toBe("5% of 41,200");
  expect([1, 2].map((n) => plural(n, "{n} node", "{n} nodes"))).toEqual(["1 node", "2 nodes"]);
  expect(rich("since {time}", { time: null })).toEqual(["since ", null, ""]);
  // @ts-expect-error a placeholder without a value
  t("{share} of {all}", { share: "5%" });
});

describe("another language", () => {
  afterEach(() => {
    vi.unstubAllGlobals();
    vi.resetModules();
  });

  async function modulesIn(tag: string) {
    vi.resetModules();
    vi.stubGlobal("document", {});
    vi.stubGlobal("navigator", { languages: [tag] });
    const text = await import("../src/i18n/text");
    await text.loadTexts();
    const format = await import("../src/ui/format");
    return { ...text, ...format };
  }

  test("has its texts, one plural form, durations, dates and lists", async () => {
    const chinese = await modulesIn("zh-CN");
    expect(chinese.t("Overview")).toBe("概览");
    expect(chinese.plural(1, "{n} node", "{n} nodes")).toBe("1 个节点");
    expect(chinese.span(90_000)).toBe("1天1小时");
    expect(chinese.span(3_700)).toBe("1小时1分");
    expect(chinese.span(240)).toBe("4分钟");
    expect(chinese.moment(Date.UTC(2026, 10, 9, 13), "UTC", false, Date.UTC(2026, 10, 16))).toBe(
      "11月9日 13:00",
    );
    expect(chinese.withUnit(chinese.t("Cost"), "USD")).toBe("成本（USD）");
    const japanese = await modulesIn("ja-JP");
    expect(japanese.t("Overview")).toBe("概要");
    expect(japanese.span(3_700)).toBe("1時間1分");
    expect(japanese.list(["a", "b"])).toBe("a、b");
    expect(japanese.count(41_200)).toBe("41,200");
  });
});

test("the name of a group is lower case within a sentence unless it starts with an acronym", () => {
  expect(["Model", "NVLink domain", "機種", "topology/Row"].map(midSentence)).toEqual([
    "model",
    "NVLink domain",
    "機種",
    "topology/Row",
  ]);
});
