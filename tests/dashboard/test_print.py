"""Print the usage page in a real browser: paper has the server's report of the same days, page by page."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Page, Route, expect
from tests.dashboard.conftest import Site
from tests.dashboard.sample_answers import TEAMS, answer_with_samples, sample_report

from gpufleet.server.routes.accounting.report_page import render_report

pytestmark = [pytest.mark.browser, pytest.mark.long]
PERIOD = "2026-03-12..2026-03-18"
PRINTED = """window.printed = new Promise((done) => {
  window.print = () => done(document.querySelector('.printed-report')?.shadowRoot.textContent ?? '');
});"""
MANY = {f"team-{number:03d}": 1 + number % 7 for number in range(90)} | TEAMS


def rgb(colour: str) -> str:
    """Return #rrggbb as a style has it."""
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def open_usage(site: Site, page: Page, teams: dict[str, int] = MANY) -> None:
    """Open the usage page over a report of many teams, and wait until it can be printed."""
    answer_with_samples(page)

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/html", body=render_report(sample_report(PERIOD, teams)))

    page.route(re.compile(r"/report\?.*format=html"), answer)
    page.goto(f"{site.address}#/usage")
    expect(page.locator(".printed-report")).to_be_attached()


def pages_of(pdf: bytes, tmp_path: Path) -> list[str]:
    """Return the text of each page; only the number of pages is known without poppler."""
    if not shutil.which("pdftotext"):
        return [""] * len(re.findall(rb"/Type\s*/Page\b", pdf))
    (tmp_path / "page.pdf").write_bytes(pdf)
    command = ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"]
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return text.removesuffix("\f").split("\f")


def test_paper_has_the_report_and_not_the_page(site: Site, page: Page, tmp_path: Path) -> None:
    open_usage(site, page)
    report = page.locator(".printed-report main")
    expect(report).to_be_hidden()
    page.emulate_media(media="print")
    expect(page.locator("#app")).to_be_hidden()
    expect(report.get_by_role("heading", level=1)).to_have_text("GPU use of prod, 2026-03-12 to 2026-03-18")
    expect(report.locator("tbody tr")).to_have_count(len(MANY) + 2)
    expect(report.get_by_role("img", name="GPU-hours per hour by namespace")).to_be_visible()
    expect(report.locator(".legend li")).to_have_count(8)
    displays = [
        report.locator(part).evaluate("e => getComputedStyle(e).display") for part in ("thead", "tfoot")
    ]
    assert displays == ["table-header-group", "table-row-group"], "headings repeat, the total does not"
    colours = report.locator(".legend rect").evaluate_all("all => all.map((e) => e.getAttribute('fill'))")
    assert len(set(colours)) == 8
    pages = pages_of(page.pdf(format="A4", prefer_css_page_size=False), tmp_path)
    assert 3 <= len(pages) <= 5
    if any(pages):
        assert all("GPU use of prod, 2026-03-12 to 2026-03-18" in text for text in pages)
        assert all(f"Page {number} of {len(pages)}" in text for number, text in enumerate(pages, 1))
        assert all("utilization" in text for text in pages), "each page has the headings of the columns"
        assert [number for number, text in enumerate(pages, 1) if re.search(r"^ *total ", text, re.M)] == [
            len(pages)
        ]


def test_a_team_has_the_same_colour_on_paper_and_on_the_page(site: Site, page: Page) -> None:
    page.add_init_script("""localStorage.setItem("gpufleet.colours", '[["research",9],["vision",0]]')""")
    open_usage(site, page, TEAMS)
    report = page.locator(".printed-report main")
    expect(page.locator("figure.chart .key").first).to_be_visible()
    page.get_by_role("button", name="Use the light theme").click()
    on_page = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('figure.chart .key')].map((key) => [
          key.querySelector('.swatch').nextSibling.textContent.trim(),
          key.querySelector('.swatch').style.background]))"""
    )
    on_paper = report.locator(".legend li").evaluate_all(
        "all => all.map((e) => [e.textContent.trim(), e.querySelector('rect').getAttribute('fill')])"
    )
    shared = [(name, colour) for name, colour in on_paper if name in on_page and name != "others"]
    assert len(shared) >= len(TEAMS) - 1
    assert [(name, rgb(colour)) for name, colour in shared] == [(name, on_page[name]) for name, _ in shared]


def test_the_print_button_waits_for_the_report_of_the_chosen_days(demo: Demo, page: Page) -> None:
    page.add_init_script(PRINTED)
    page.goto(f"{demo.address}#/usage?by=workload&period=today")
    expect(page.get_by_role("heading", name="GPU hours by workload")).to_be_visible()
    page.get_by_role("button", name="Print").click()
    text = str(page.evaluate("window.printed"))
    assert "By workload, " in text
    assert "total" in text
    page.get_by_role("link", name="Nodes").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
    expect(page.locator(".printed-report")).to_have_count(0)


def test_the_page_itself_is_printed_if_there_is_no_report(site: Site, page: Page) -> None:
    answer_with_samples(page)
    page.route(re.compile(r"/report\?.*format=html"), lambda route: route.abort())
    page.add_init_script(PRINTED)
    page.goto(f"{site.address}#/usage")
    expect(page.get_by_role("heading", name="GPU hours by namespace")).to_be_visible()
    page.get_by_role("button", name="Print").click()
    assert page.evaluate("window.printed") == ""
    page.emulate_media(media="print")
    expect(page.locator("#app")).to_be_visible()
