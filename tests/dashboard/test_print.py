"""Print the usage page in a real browser: paper has all rows of the report with the totals of the server."""

import re
import zlib
from pathlib import Path

import msgspec
import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Locator, Page, Route, expect
from tests.dashboard.conftest import Site
from tests.dashboard.sample_answers import TEAMS, answer_with_samples, sample_report

from gpufleet.accounting.fault_costs import FaultCosts
from gpufleet.accounting.report import Report

pytestmark = [pytest.mark.browser, pytest.mark.long]
CENT = 0.0051
"""Half of the last digit that is shown."""

PERIOD = "2026-03-12..2026-03-18"
MANY = {f"team-{number:03d}": 1 + number % 7 for number in range(90)} | TEAMS
FAULTS = FaultCosts(
    faults=2,
    lost_gpu_hours=12.5,
    mean_hours_between_failures=5952.0,
    mean_hours_to_repair=1.5,
    by_cause={"xid-79": 12.0, "xid-48": 0.5},
    by_node={"gpu-node-1": 12.5},
    by_model={"NVIDIA H200": 12.5},
)


def open_usage(site: Site, page: Page, teams: dict[str, int]) -> Report:
    """Open the usage page over a report of `teams`, and return the report."""
    answer_with_samples(page)
    made = msgspec.structs.replace(sample_report(PERIOD, teams), faults=FAULTS)
    body = msgspec.json.encode({"data": made})

    def answer(route: Route) -> None:
        route.fulfill(content_type="application/json", body=body)

    page.route(re.compile(r"/report\?"), answer)
    page.goto(f"{site.address}#/usage")
    expect(page.get_by_role("heading", name="GPU hours by namespace")).to_be_visible()
    return made


def visible_rows(table: Locator) -> list[list[str]]:
    """Return the cells of the rows that are on paper."""
    rows: list[list[str]] = table.locator("tbody tr").evaluate_all(
        """rows => rows.filter(row => getComputedStyle(row).display !== 'none')
             .map(row => [...row.cells].map(cell => cell.innerText.trim()))"""
    )
    return rows


def usage_table(page: Page) -> Locator:
    return page.locator(".card", has=page.get_by_role("heading", name="GPU hours by")).locator("table")


def number(text: str) -> float:
    return float(text.replace(",", ""))


def number_of_pages(pdf: bytes) -> int:
    """Return the number of pages of a PDF file; its objects may be compressed."""
    parts = [pdf]
    for found in re.finditer(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        try:
            parts.append(zlib.decompressobj().decompress(found[1]))
        except zlib.error:
            continue
    return sum(len(re.findall(rb"/Type\s*/Page\b", part)) for part in parts)


def test_paper_has_every_row_and_the_totals_of_the_report(site: Site, page: Page, tmp_path: Path) -> None:
    made = open_usage(site, page, MANY)
    table = usage_table(page)
    assert len(visible_rows(table)) == 20, "a page on the screen"
    page.emulate_media(media="print")
    groups = [row for row in made.rows if row.row == "group"]
    rows = visible_rows(table)
    assert len(groups) == len(MANY)
    assert [row[0] for row in rows] == [row.name for row in groups]
    assert [number(row[1]) for row in rows] == pytest.approx([row.gpu_hours for row in groups], abs=CENT)
    assert [number(row[-1]) for row in rows] == pytest.approx([row.cost for row in groups], abs=CENT)
    total = table.locator("tfoot td").all_inner_texts()
    assert total[0] == "Total"
    assert number(total[1]) == pytest.approx(made.totals.allocated_gpu_hours, abs=CENT)
    assert number(total[-1]) == pytest.approx(made.totals.cost, abs=CENT)
    displays = [
        table.locator(part).evaluate("e => getComputedStyle(e).display") for part in ("thead", "tfoot")
    ]
    assert displays == ["table-header-group", "table-row-group"], "headings repeat, the total does not"
    assert 3 <= number_of_pages(page.pdf(format="A4")) <= 6


def test_paper_has_the_report_and_no_navigation(site: Site, page: Page) -> None:
    open_usage(site, page, TEAMS)
    page.emulate_media(media="print")
    head = page.locator(".page-head")
    expect(head).to_contain_text("prod · ")
    expect(usage_table(page).locator("thead tr").first).to_contain_text("Usage · prod · ")
    expect(page.locator(".card.stat", has_text="Lost GPU hours")).to_contain_text("12.50")
    expect(page.locator(".card", has_text="By cause")).to_contain_text("xid-79")
    for hidden in (
        page.locator(".side"),
        page.locator(".pager"),
        page.get_by_role("button", name="Print"),
        page.get_by_role("button", name="Save the table as CSV").first,
        page.get_by_role("heading", name="Budgets"),
        page.get_by_text("area is proportional"),
    ):
        expect(hidden).to_be_hidden()


def test_a_dark_page_is_printed_with_the_colours_of_the_light_one(site: Site, page: Page) -> None:
    open_usage(site, page, TEAMS)
    swatch = page.locator("figure.chart .key .swatch").first
    dark = swatch.evaluate("e => e.style.background")
    page.evaluate("""addEventListener('beforeprint', () => Promise.resolve().then(() => {
      window.printed = [document.documentElement.dataset.theme,
        document.querySelector('figure.chart .key .swatch').style.background];
    }))""")
    page.pdf(format="A4")
    theme, light = page.evaluate("window.printed")
    assert theme == "light"
    assert light != dark
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(swatch).to_have_css("background-color", dark)


def test_the_print_button_prints_the_report_of_the_chosen_days(demo: Demo, page: Page) -> None:
    page.add_init_script("window.print = () => { window.printed = document.body.innerText; }")
    page.goto(f"{demo.address}#/usage?by=workload&period=7d")
    expect(page.get_by_role("heading", name="GPU hours by workload")).to_be_visible()
    page.get_by_role("button", name="Print").click()
    assert "GPU hours by workload" in str(page.evaluate("window.printed"))
    page.emulate_media(media="print")
    asked = [
        address
        for address in page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
        if "/report?" in address and "group_by=workload" in address
    ]
    made = demo.get(asked[0].removeprefix(demo.address))
    rows = visible_rows(usage_table(page))
    # The hours of the demo go on.
    total = number(usage_table(page).locator("tfoot td").nth(1).inner_text())
    assert total == pytest.approx(made["totals"]["allocated_gpu_hours"], rel=0.01)
    shown = [row for row in made["rows"] if row["row"] in ("group", "others")]
    assert len([row for row in rows if row[0] != "unattributed"]) == len(shown) > 20
