"""The page over a real `gpufleet demo`: every page and filter, live changes, books that agree, sorting, gangs."""

import csv
import io
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.axe import serious_faults
from tests.dashboard.demo import Demo
from tests.dashboard.page_types import DASHBOARD, SCHEMA, write_types

pytestmark = pytest.mark.browser
BOOKS = "api/v1/gpu-aggregation"


def open_place(demo: Demo, page: Page, place: str) -> None:
    page.goto(f"{demo.address}#/{place}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)


def test_every_page_has_something_to_show(demo: Demo, page: Page) -> None:
    node = demo.get("api/nodes?state=partial&pageSize=1")["data"][0]["name"]
    workload = demo.get("api/clusters/consumers?pageSize=1")["data"][0]["uid"]
    shown = {
        "": ["Every GPU", "Top consumers", "Waste", "Allocation and utilization"],
        "nodes": ["Nodes"],
        f"nodes/{node}": ["GPUs", "History", "Processes", "Labels"],
        "workloads": ["Workloads"],
        f"workloads/{workload}": ["GPUs over time", "Training", "Hierarchy", "Pods"],
        "usage": ["Allocated GPUs", "GPU hours by namespace", "Idle while allocated"],
        "scheduling": ["Would it fit now?", "Claims", "Gangs", "Leases"],
    }
    for place, headings in shown.items():
        open_place(demo, page, place)
        for heading in headings:
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        expect(page.locator(".failed")).to_have_count(0)
        expect(page.get_by_text("Simulated fleet.")).to_be_visible()


def test_a_node_that_kubectl_cordons_is_told_at_once(demo: Demo, page: Page) -> None:
    rows = demo.get("api/nodes")["data"]
    node = next(row["name"] for row in rows if row["state"] != "faulty" and row["source"] == "k8s")
    open_place(demo, page, "")
    expect(page.locator(".live")).to_contain_text("Live")
    try:
        demo.cordon(node, True)
        told = page.locator(".feed li", has_text=node).filter(has_text="cordoned")
        expect(told.first).to_be_visible()
        page.goto(f"{demo.address}#/nodes/{node}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("cordoned")
    finally:
        demo.cordon(node, False)
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("cordoned")


def test_each_filter_of_the_workloads_narrows_as_the_api_does(demo: Demo, page: Page) -> None:
    known = demo.get("api/workloadMetadata")
    filters = {
        "namespace": known["namespaces"][0],
        "kind": known["kinds"][-1],
        "status": "Completed",
        "source": "k8s",
    }
    open_place(demo, page, "workloads")
    for name, value in filters.items():
        page.get_by_label(name.capitalize(), exact=True).select_option(value)
        expect(page).to_have_url(re.compile(rf"[?&]{name}={re.escape(value)}"))
        expect(page.locator("tbody tr").first).to_contain_text(
            {"namespace": value, "kind": value, "status": value, "source": value}[name]
        )
        page.get_by_role("button", name="Clear").click()
        expect(page).not_to_have_url(re.compile(rf"{name}="))
    row = demo.get("api/workloads?sort=name&pageSize=1")["data"][0]
    page.get_by_label("Find a workload").fill(row["name"])
    expect(page.locator("tbody tr").first).to_contain_text(row["name"])
    expect(page).to_have_url(re.compile(f"name={row['name']}"))


def test_lists_are_sorted_by_what_the_address_says(demo: Demo, page: Page) -> None:
    open_place(demo, page, "workloads?sort=-gpus")
    most = demo.get("api/workloads?sort=gpus&pageSize=1")["data"][0]
    expect(page.locator("tbody tr").first).to_contain_text(most["name"])
    page.get_by_role("button", name="Workload", exact=True).click()
    expect(page).to_have_url(re.compile(r"[?&]sort=name"))
    first = demo.get("api/workloads?sort=name&pageSize=1")["data"][0]
    expect(page.locator("tbody tr").first).to_contain_text(first["name"])
    open_place(demo, page, "nodes?sort=-name")
    last = demo.get("api/nodes?reverse=true&pageSize=1")["data"][0]
    expect(page.locator("tbody tr").first).to_contain_text(last["name"])
    open_place(demo, page, "usage?sort=name")
    names = [cell.strip() for cell in page.locator("tbody td.name").all_inner_texts()]
    grouped = names[: len(demo.get(f"{BOOKS}/namespaces"))]
    assert grouped == sorted(grouped)


def rounded(value: float) -> re.Pattern[str]:
    """How a page may show `value`: what lies just between two hundredths is rounded to either."""
    return re.compile("|".join(re.escape(f"{value + bit:,.2f}") for bit in (-1e-6, 1e-6)))


def rows_of_a_week(demo: Demo, report: Any) -> list[Any]:
    """Every hourly row of every workload in the days of a report, page by page."""
    rows: list[Any] = []
    asked = f"{BOOKS}/workloads/hourly-stats?page_size=1000&start_time={report['start_time']}"
    for number in range(1, 100):
        page = demo.get(f"{asked}&end_time={report['end_time']}&page={number}")
        rows += page["data"]
        if number >= page["total_pages"]:
            return rows
    raise AssertionError("too many pages")


def test_the_books_of_more_than_a_thousand_rows_agree_to_the_digit(demo: Demo, page: Page) -> None:
    with page.expect_response(re.compile("/report.*group_by=workload.*series=")) as answered:
        open_place(demo, page, "usage?by=workload")
    report = answered.value.json()["data"]
    rows = rows_of_a_week(demo, report)
    assert len(rows) > 1000
    slow = sum(row["allocated_gpu_hours"] for row in rows)
    drawn = sum(sum(line["gpu_hours"]) for line in report["series"]["lines"])
    told = report["totals"]["allocated_gpu_hours"]
    assert (slow, drawn) == pytest.approx((told, told), rel=1e-9)
    total = page.get_by_role("region", name="GPU hours").locator("tfoot tr")
    expect(total).to_contain_text(rounded(told))
    expect(total).to_contain_text(rounded(report["totals"]["cost"]))
    first = report["rows"][0]
    own = sum(row["allocated_gpu_hours"] for row in rows if row["owner_uid"] == first["uid"])
    expect(page.locator("tbody tr").first).to_contain_text(rounded(own))
    assert sum(report["series"]["lines"][0]["gpu_hours"]) == pytest.approx(own, rel=1e-9)


def test_a_month_is_saved_as_csv_and_printed(demo: Demo, page: Page) -> None:
    open_place(demo, page, "usage")
    page.get_by_role("radio", name="Label").click()
    expect(page.get_by_label("Key", exact=True)).to_be_visible()
    page.get_by_role("radio", name="Month").click()
    expect(page).to_have_url(re.compile("period=month"))
    expect(page.get_by_role("heading", name="GPU hours a day")).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    text = Path(saved.value.path()).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    held = sum(float(row["gpu_hours"]) for row in rows if row["row"] != "unallocated")
    expect(page.locator("tfoot tr")).to_contain_text(rounded(held))
    assert sum(float(row["cost"]) for row in rows) > 0
    page.emulate_media(media="print")
    expect(page.get_by_role("button", name="CSV")).to_be_hidden()
    expect(page.locator(".side")).to_be_hidden()
    expect(page.locator("tfoot tr")).to_be_visible()


def test_days_are_chosen_from_one_to_another(demo: Demo, page: Page) -> None:
    open_place(demo, page, "usage")
    page.get_by_role("radio", name="Dates").click()
    day = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    page.get_by_label("First day").fill(day)
    page.get_by_label("Last day").fill(day)
    expect(page).to_have_url(re.compile(f"from={day}&to={day}"))
    report = demo.get(f"{BOOKS}/report?period={day}")
    assert report["totals"]["allocated_gpu_hours"] > 0
    expect(page.locator("tfoot tr")).to_contain_text(rounded(report["totals"]["allocated_gpu_hours"]))


def test_who_waits_is_explained_and_gangs_are_counted(demo: Demo, page: Page) -> None:
    open_place(demo, page, "scheduling")
    gangs = {(row["namespace"], row["gang"]) for row in demo.get("api/claims?gang=*&pageSize=1000")["data"]}
    assert gangs
    expect(page.get_by_role("region", name="Gangs").locator("tbody tr")).to_have_count(min(12, len(gangs)))
    claim = demo.get("api/claims?phase=Pending&pageSize=1")["data"][0]
    page.goto(f"{demo.address}#/scheduling?claim={claim['namespace']}/{claim['name']}")
    why = demo.get(f"api/claims/{claim['namespace']}/{claim['name']}/explain")
    expect(page.get_by_role("heading", name=f"Why {claim['name']}?")).to_be_visible()
    expect(page.locator(".card", has_text=f"Why {claim['name']}?")).to_contain_text(why["sentence"][:30])


@pytest.mark.parametrize("place", ["usage?by=workload", "scheduling"])
def test_axe_finds_no_serious_fault_in_full_tables(demo: Demo, page: Page, place: str) -> None:
    open_place(demo, page, place)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert serious_faults(page) == []
    page.get_by_role("button", name="Use the light theme").click()
    assert serious_faults(page) == []


def test_the_types_of_the_page_are_what_the_server_says_of_itself(demo: Demo, tmp_path: Path) -> None:
    if shutil.which("npm") is None or not (DASHBOARD / "node_modules").is_dir():
        pytest.skip("needs Node.js and what the page is built with: make dashboard")
    write_types(demo.address, tmp_path / "schema.ts")
    assert without_words(tmp_path / "schema.ts") == without_words(SCHEMA), (
        "the API has changed: run python -m tests.dashboard.page_types"
    )


def without_words(types: Path) -> str:
    """Types without their descriptions: other words for the same thing are no change."""
    return re.sub(r"\n\s*/\*\*.*?\*/", "", types.read_text(), flags=re.DOTALL)
