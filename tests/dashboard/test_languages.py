"""Test the dashboard in Chinese and Japanese over a real `gpufleet demo`, and the choice of the language."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

pytestmark = [pytest.mark.browser, pytest.mark.long]
LOCALES = {"zh-CN": "概览", "ja-JP": "概要"}
PHONE: ViewportSize = {"width": 390, "height": 844}
ENTRY = re.compile(r'^ +(?:"((?:[^"\\]|\\.)*)"|(\w+)):\s+"((?:[^"\\]|\\.)*)",$', re.MULTILINE)
VALUE = re.compile(r"\{\w+\}")
# Texts and attributes that somebody can read; logs and manifests are those of Kubernetes.
READ_TEXTS = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    if (!walker.currentNode.parentElement.closest("pre, script")) found.push(walker.currentNode.data);
  for (const element of document.body.querySelectorAll("*"))
    for (const name of ["title", "aria-label", "placeholder", "data-label"])
      if (element.hasAttribute(name)) found.push(element.getAttribute(name));
  return found.map((text) => text.trim()).filter(Boolean);
}"""


def dictionary(language: str) -> dict[str, str]:
    """Return the translations of the English texts."""
    folder = Path(__file__).parents[2] / "dashboard/src/i18n" / language
    texts = "\n".join(file.read_text() for file in folder.glob("*.ts"))
    return {quoted or plain: text for quoted, plain, text in ENTRY.findall(texts)}


@pytest.fixture
def english(demo: Demo, locale: str) -> re.Pattern[str]:
    """Match the English texts that have another text in a language; a value is one word."""
    kinds = demo.get("api/workloadMetadata")["kinds"]  # a Container is a word of the page, too
    texts = [key for key, text in dictionary(locale[:2]).items() if key != text and key not in kinds]
    assert len(texts) > 500
    return re.compile("|".join(map(pattern_of, filter(has_words, texts))))


def has_words(text: str) -> bool:
    """Return whether a text has words besides the names of its values."""
    return re.search("[A-Za-z]{3}", VALUE.sub("", text)) is not None


def pattern_of(text: str) -> str:
    """Return a regular expression for a text in which a value is one word."""
    return r"\S+".join(map(re.escape, VALUE.split(text)))


def test_a_text_of_values_alone_is_in_every_language() -> None:
    assert not has_words("{name}: {value}, {share}")
    assert has_words("against {days}")
    assert re.fullmatch(pattern_of("{count} of {total}."), "3 of 4.")


def english_texts(page: Page, english: re.Pattern[str]) -> list[str]:
    return sorted({text for text in page.evaluate(READ_TEXTS) if english.fullmatch(text)})


@pytest.fixture(params=LOCALES)
def locale(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def foreign(browser: Browser, locale: str) -> Iterator[Page]:
    """Open a page in a browser with another language; an error in its console fails the test."""
    context = browser.new_context(locale=locale, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(15_000)
    expect.set_options(timeout=15_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert errors == []


def open_page(demo: Demo, page: Page, path: str) -> None:
    page.goto(f"{demo.address}#/{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0, timeout=60_000)


def paths(demo: Demo) -> list[str]:
    """Return every page, with objects of the demo."""
    node = demo.first("api/nodes?state=partial&pageSize=1")["name"]
    running = demo.get("api/clusters/consumers?pageSize=2")["data"]
    pending = demo.get("api/workloads?status=Pending&pageSize=1")["data"]
    claims = demo.get("api/claims?phase=Pending&pageSize=1")["data"]
    return [
        "",
        "?by=health&group=model",
        "nodes",
        f"nodes/{node}",
        "workloads",
        "workloads?view=timeline",
        *[f"workloads/{workload['uid']}" for workload in [running[0], *pending]],
        f"compare?runs={','.join(workload['uid'] for workload in running)}",
        "queue",
        "scheduling",
        *[f"scheduling?claim={claim['namespace']}/{claim['name']}" for claim in claims],
        "health",
        "usage",
        f"usage?ns={running[0]['namespace']}&period=30d&mode=sum",
    ]


def test_no_english_text_is_left_on_any_page(demo: Demo, foreign: Page, english: re.Pattern[str]) -> None:
    left = {}
    for path in paths(demo):
        open_page(demo, foreign, path)
        left[path] = english_texts(foreign, english)
    assert {path: texts for path, texts in left.items() if texts} == {}


def open_dialog(page: Page, key: str) -> None:
    """Press a key until its dialog is open: the page may not listen yet."""
    for _ in range(5):
        page.keyboard.press(key)
        with suppress(AssertionError):
            return expect(page.get_by_role("dialog")).to_be_visible(timeout=3_000)
    pytest.fail(f"{key} opens no dialog")


def test_no_english_text_is_left_in_dialogs(demo: Demo, foreign: Page, english: re.Pattern[str]) -> None:
    open_page(demo, foreign, "")
    for key in ("?", "Control+k"):
        open_dialog(foreign, key)
        assert english_texts(foreign, english) == []
        foreign.keyboard.press("Escape")
        expect(foreign.get_by_role("dialog")).to_have_count(0)
    foreign.locator(".bell").click()
    expect(foreign.get_by_role("dialog")).to_be_visible()
    assert english_texts(foreign, english) == []


def test_dates_durations_and_the_document_have_the_locale(demo: Demo, foreign: Page, locale: str) -> None:
    open_page(demo, foreign, "usage")
    expect(foreign.locator("html")).to_have_attribute("lang", locale)
    expect(foreign.locator(".page-title p")).to_contain_text(re.compile(r"20\d\d(年|/)\d+"))
    open_page(demo, foreign, "workloads")
    expect(foreign.locator("tbody time").first).to_have_text(re.compile(r"^(20\d\d年)?\d+月\d+日 \d\d:\d\d$"))
    expect(foreign.locator("tbody td.right").last).to_have_text(re.compile("[天日]|小?[时時]|分|秒|–"))
    months = re.compile(r"\d (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b")
    for path in ("", "usage", "queue", "health"):
        open_page(demo, foreign, path)
        assert [text for text in foreign.evaluate(READ_TEXTS) if months.search(text)] == []


def right_of(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["x"] + box["width"]


def test_nothing_is_clipped_on_a_phone(demo: Demo, foreign: Page, locale: str) -> None:
    foreign.set_viewport_size(PHONE)
    for path in paths(demo):
        open_page(demo, foreign, path)
        assert foreign.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
    links = foreign.locator(".side nav a")
    expect(links.first).to_contain_text(LOCALES[locale])
    for link in links.all():
        assert right_of(link) <= PHONE["width"]
        assert link.evaluate("element => element.scrollWidth <= element.clientWidth")
    for control in foreign.locator(".side-foot button, .language").all():
        assert right_of(control) <= PHONE["width"]


def test_menus_open_within_a_phone(demo: Demo, foreign: Page) -> None:
    foreign.set_viewport_size(PHONE)
    node = demo.first("api/nodes?pageSize=1")["name"]
    open_page(demo, foreign, f"nodes/{node}")
    menus = foreign.locator("details.popover")
    expect(menus).to_have_count(2)  # views, and the time range
    for menu in menus.all():
        menu.locator("summary").click()
        box = menu.locator(".popover-body").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        menu.locator("summary").click()


def test_the_language_is_chosen_in_the_page_and_kept(demo: Demo, page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    open_page(demo, page, "")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert not [url for url in requested if re.search(r"/(zh|ja)-[^/]*\.js", url)]
    page.get_by_label("Language").select_option("ja")
    expect(page.get_by_role("heading", level=1)).to_have_text("概要")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("概要")
    expect(page.locator("html")).to_have_attribute("lang", "ja-JP")
    page.get_by_label("言語").select_option("en")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_the_english_name_of_a_page_finds_it_in_every_language(
    demo: Demo, foreign: Page, locale: str
) -> None:
    open_page(demo, foreign, "")
    open_dialog(foreign, "Control+k")
    foreign.get_by_role("dialog").get_by_role("combobox").fill("queue")
    found = foreign.get_by_role("dialog").get_by_role("option").first
    expect(found).to_contain_text(dictionary(locale[:2])["Queue"])
    foreign.keyboard.press("Enter")
    expect(foreign).to_have_url(re.compile("#/queue"))
