"""Test the dashboard over a real `gpufleet demo`: pages, filters, live changes, accounting, sorting, gangs."""

import csv
import io
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Page, expect
from tests.dashboard.accessibility import serious_violations

pytestmark = [pytest.mark.browser, pytest.mark.long]
AGGREGATION = "api/v1/gpu-aggregation"


def open_page(demo: Demo, page: Page, path: str) -> None:
    page.goto(f"{demo.address}#/{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)


def fixed_day(page: Page) -> str:
    """Fix the date of a page, so that midnight does not change it, and return the day.

    It is two hours ago, because hours of the day must be accounted.
    """
    then = datetime.now(UTC) - timedelta(hours=2)
    page.clock.set_fixed_time(then)
    return f"{then:%Y-%m-%d}"


def test_every_page_shows_its_sections_with_data(demo: Demo, page: Page) -> None:
    node = demo.first("api/nodes?state=partial&pageSize=1")["name"]
    workload = demo.first("api/clusters/consumers?pageSize=1")["uid"]
    expected = {
        "": ["Every GPU", "Top consumers", "Waste", "Allocation and utilization"],
        "nodes": ["Nodes"],
        f"nodes/{node}": ["GPUs", "History", "Processes", "Labels"],
        "workloads": ["Workloads"],
        f"workloads/{workload}": ["GPUs over time", "Training", "Hierarchy", "Pods"],
        "usage": ["Allocated GPUs", "Forecast", "GPU hours by namespace", "Idle while allocated"],
        "queue": ["In order", "GpuQueues"],
        "scheduling": ["Would it fit now?", "Claims", "Gangs", "Leases"],
        "health": ["Findings", "Repairs"],
    }
    for path, headings in expected.items():
        open_page(demo, page, path)
        for heading in headings:
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        expect(page.locator(".failed")).to_have_count(0)
        expect(page.get_by_text("Simulated fleet.")).to_be_visible()


def test_a_node_cordoned_by_kubectl_appears_immediately(demo: Demo, page: Page) -> None:
    rows = demo.get("api/nodes")["data"]
    node = next(row["name"] for row in rows if row["state"] != "faulty" and row["source"] == "k8s")
    open_page(demo, page, "")
    expect(page.locator(".live")).to_contain_text("Live")
    try:
        demo.cordon(node, True)
        change = page.locator(".feed li", has_text=node).filter(has_text="cordoned")
        expect(change.first).to_be_visible()
        page.goto(f"{demo.address}#/nodes/{node}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("cordoned")
    finally:
        demo.cordon(node, False)
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("cordoned")


def test_each_workload_filter_matches_the_api(demo: Demo, page: Page) -> None:
    known = demo.get("api/workloadMetadata")
    filters = {
        "namespace": known["namespaces"][0],
        "kind": known["kinds"][-1],
        "status": "Completed",
        "source": "k8s",
    }
    open_page(demo, page, "workloads")
    for name, value in filters.items():
        page.get_by_label(name.capitalize(), exact=True).select_option(value)
        expect(page).to_have_url(re.compile(rf"[?&]{name}={re.escape(value)}"))
        if name == "source":  # has no column
            first = demo.first(f"api/workloads?source={value}&pageSize=1")["name"]
            expect(page.locator("tbody tr").first).to_contain_text(first)
        else:
            expect(page.locator("tbody tr").first).to_contain_text(value)
        page.get_by_role("button", name="Clear").click()
        expect(page).not_to_have_url(re.compile(rf"{name}="))
    row = demo.first("api/workloads?sort=name&pageSize=1")
    page.get_by_label("Find a workload").fill(row["name"])
    expect(page.locator("tbody tr").first).to_contain_text(row["name"])
    expect(page).to_have_url(re.compile(f"name={row['name']}"))


def test_lists_are_sorted_by_the_sort_parameter_of_the_url(demo: Demo, page: Page) -> None:
    open_page(demo, page, "workloads?sort=-gpus")
    most = demo.first("api/workloads?sort=gpus&pageSize=1")
    expect(page.locator("tbody tr").first).to_contain_text(most["name"])
    page.get_by_role("button", name="Workload", exact=True).click()
    expect(page).to_have_url(re.compile(r"[?&]sort=name"))
    first = demo.first("api/workloads?sort=name&pageSize=1")
    expect(page.locator("tbody tr").first).to_contain_text(first["name"])
    open_page(demo, page, "nodes?sort=-name")
    last = demo.first("api/nodes?reverse=true&pageSize=1")
    expect(page.locator("tbody tr").first).to_contain_text(last["name"])
    open_page(demo, page, "usage?sort=name")
    table = page.get_by_role("region", name="GPU hours")
    names = [cell.strip() for cell in table.locator("tbody td.name").all_inner_texts()]
    grouped = names[: len(demo.get(f"{AGGREGATION}/namespaces"))]
    assert grouped == sorted(grouped)


def rounded(value: float) -> re.Pattern[str]:
    """Match `value` with two digits; a tie may be rounded up or down."""
    return re.compile("|".join(re.escape(f"{value + epsilon:,.2f}") for epsilon in (-1e-6, 1e-6)))


def hourly_rows(demo: Demo, report: Any) -> list[Any]:
    """Fetch the hourly rows of every workload in the period of a report, page by page."""
    rows: list[Any] = []
    # A report ends before its last time; hourly rows include that of their last time.
    last = datetime.fromisoformat(report["end_time"]) - timedelta(seconds=1)
    url = f"{AGGREGATION}/workloads/hourly-stats?page_size=1000&start_time={report['start_time']}"
    for number in range(1, 100):
        page = demo.get(f"{url}&end_time={last:%Y-%m-%dT%H:%M:%SZ}&page={number}")
        rows += page["data"]
        if number >= page["total_pages"]:
            return rows
    raise AssertionError("too many pages")


def test_totals_over_a_thousand_hourly_rows_match_the_report_exactly(demo: Demo, page: Page) -> None:
    today = fixed_day(page)
    with page.expect_response(re.compile(rf"/report.*group_by=workload.*\.\.{today}&.*series=")) as response:
        open_page(demo, page, "usage?by=workload")
    report = response.value.json()["data"]
    rows = hourly_rows(demo, report)
    assert len(rows) > 1000
    from_rows = sum(row["allocated_gpu_hours"] for row in rows)
    from_series = sum(sum(line["gpu_hours"]) for line in report["series"]["lines"])
    total_hours = report["totals"]["allocated_gpu_hours"]
    assert (from_rows, from_series) == pytest.approx((total_hours, total_hours), rel=1e-9)
    table = page.get_by_role("region", name="GPU hours")
    total = table.locator("tfoot tr")
    expect(total).to_contain_text(rounded(total_hours))
    expect(total).to_contain_text(rounded(report["totals"]["cost"]))
    first = report["rows"][0]
    own = sum(row["allocated_gpu_hours"] for row in rows if row["owner_uid"] == first["uid"])
    expect(table.locator("tbody tr").first).to_contain_text(rounded(own))
    assert sum(report["series"]["lines"][0]["gpu_hours"]) == pytest.approx(own, rel=1e-9)


def test_a_month_can_be_downloaded_as_csv_and_printed(demo: Demo, page: Page) -> None:
    fixed_day(page)  # the month has hours
    open_page(demo, page, "usage")
    page.get_by_role("radio", name="Label").click()
    expect(page.get_by_label("Key", exact=True)).to_be_visible()
    page.get_by_role("radio", name="Month").click()
    expect(page).to_have_url(re.compile("period=month"))
    expect(page.get_by_role("heading", name="GPU hours per day")).to_be_visible()
    table = page.locator(".card", has_text="GPU hours by")
    with page.expect_download() as download:
        table.get_by_role("button", name="Save the table as CSV").click()
    text = Path(download.value.path()).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    allocated = sum(float(row["gpu_hours"]) for row in rows if row["row"] != "unallocated")
    expect(page.locator(".card tfoot tr")).to_contain_text(rounded(allocated))
    assert sum(float(row["cost"]) for row in rows) > 0
    page.emulate_media(media="print")
    expect(page.get_by_role("button", name="Save the table as CSV").first).to_be_hidden()
    expect(page.locator(".side")).to_be_hidden()
    expect(page.locator(".card tfoot tr")).to_be_visible()


def test_a_node_shows_who_held_its_gpus(demo: Demo, page: Page) -> None:
    node = demo.first("api/nodes?sort=utilization&pageSize=1")
    open_page(demo, page, f"nodes/{node['name']}?span=24h")
    expect(page.locator(".gantt-row")).to_have_count(node["gpuTotal"])
    until = int(time.time())
    held = demo.get(f"api/nodes/{node['name']}/occupancy?start={until - 86_400}&end={until}")
    longest = max(held["periods"], key=lambda period: (period["end"] or until) - period["start"])
    bars = page.locator(f"a.gantt-bar[href='#/workloads/{longest['workloadUid']}']")
    expect(bars.first).to_contain_text(longest["workloadName"])
    bars.first.click()
    expect(page.get_by_role("heading", name=longest["workloadName"], level=1)).to_be_visible()


def test_a_range_of_dates_can_be_chosen(demo: Demo, page: Page) -> None:
    open_page(demo, page, "usage")
    page.get_by_role("radio", name="Dates").click()
    day = f"{datetime.now(UTC) - timedelta(days=1, hours=2):%Y-%m-%d}"  # all its hours are accounted
    page.get_by_label("First day").fill(day)
    page.get_by_label("Last day").fill(day)
    expect(page).to_have_url(re.compile(f"from={day}&to={day}"))
    report = demo.get(f"{AGGREGATION}/report?period={day}")
    assert report["totals"]["allocated_gpu_hours"] > 0
    expect(page.locator(".card tfoot tr")).to_contain_text(rounded(report["totals"]["allocated_gpu_hours"]))


def test_pending_claims_are_explained_and_gangs_are_counted(demo: Demo, page: Page) -> None:
    open_page(demo, page, "scheduling")
    gangs = {(row["namespace"], row["gang"]) for row in demo.get("api/claims?gang=*&pageSize=1000")["data"]}
    assert gangs
    expect(page.get_by_role("region", name="Gangs").locator("tbody tr")).to_have_count(min(12, len(gangs)))
    claim = demo.first("api/claims?phase=Pending&pageSize=1")
    page.goto(f"{demo.address}#/scheduling?claim={claim['namespace']}/{claim['name']}")
    why = demo.get(f"api/claims/{claim['namespace']}/{claim['name']}/explain")
    expect(page.get_by_role("heading", name=f"Why is {claim['name']} waiting?")).to_be_visible()
    expect(page.locator(".card", has_text=f"Why is {claim['name']} waiting?")).to_contain_text(
        why["sentence"][:30]
    )


def test_the_queue_shows_in_which_order_and_when_claims_are_expected_to_start(demo: Demo, page: Page) -> None:
    claim = demo.first("api/claims?phase=Pending")
    open_page(demo, page, f"scheduling?claim={claim['namespace']}/{claim['name']}")
    expect(page.get_by_text(re.compile(r"Position \d+ in the queue"))).to_be_visible()
    open_page(demo, page, "queue")
    expect(page.get_by_role("region", name="Waiting units").locator("tbody tr").first).to_be_visible()


def test_a_waiting_workload_shows_its_request_and_no_running_time(demo: Demo, page: Page) -> None:
    pending = demo.get("api/workloads?status=Pending")["data"]
    waiting = next(row for row in pending if row["waitingReason"] and row["source"] == "k8s")
    model = demo.get("api/workloadMetadata")["models"][0]
    open_page(demo, page, "workloads?status=Pending")
    row = page.locator(f"tbody tr:has(a[href='#/workloads/{waiting['uid']}'])")
    expect(row).to_contain_text(f"{waiting['gpuRequested']}requested")
    expect(row).to_contain_text(waiting["waitingReason"].removeprefix("Pending: ")[:30])
    expect(row).to_contain_text("waiting for")
    open_page(demo, page, f"workloads/{waiting['uid']}")
    expect(page.get_by_text("Waiting for", exact=True)).to_be_visible()
    expect(page.get_by_text("Running for")).to_have_count(0)
    expect(page.get_by_role("heading", name="Why it waits")).to_be_visible()
    open_page(demo, page, "nodes")
    page.get_by_label("Model").select_option(model)
    total = demo.get(f"api/nodes?model={model}")["total"]
    expect(page.locator("tbody tr")).to_have_count(min(25, total))


@pytest.mark.parametrize("path", ["usage?by=workload", "scheduling", "queue", "health"])
def test_axe_finds_no_serious_violation_in_full_tables(demo: Demo, page: Page, path: str) -> None:
    open_page(demo, page, path)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert serious_violations(page) == []
    page.get_by_role("button", name="Use the light theme").click()
    assert serious_violations(page) == []
