"""Test the usage and scheduling pages over a real `gpufleet demo`: drill-down, charts, budgets, zones, what fits."""

import re
from pathlib import Path
from typing import Any

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Browser, Page, Route, expect
from tests.dashboard.accessibility import serious_violations
from tests.dashboard.test_demo import AGGREGATION, fixed_day, open_page, rounded

pytestmark = [pytest.mark.browser, pytest.mark.long]


def report_of(demo: Demo, page: Page, path: str) -> Any:
    """Open a usage page and return its report, not that of the days before."""
    with page.expect_response(re.compile(rf"/report.*\.\.{fixed_day(page)}&.*series=")) as response:
        open_page(demo, page, path)
    return response.value.json()["data"]


def test_a_namespace_opens_its_workloads_and_these_open_their_runs(demo: Demo, page: Page) -> None:
    report_of(demo, page, "usage")
    first = page.get_by_role("region", name="GPU hours").locator("tbody tr").first
    namespace = first.locator("td.name").inner_text()
    today = fixed_day(page)
    with page.expect_response(re.compile(rf"/report.*namespace={namespace}&.*\.\.{today}")) as response:
        first.get_by_role("button", name=namespace).click()
    expect(page).to_have_url(re.compile(f"ns={namespace}"))
    report = response.value.json()["data"]
    assert {row["namespace"] for row in report["rows"] if row["row"] == "group"} == {namespace}
    expect(page.locator(".card tfoot tr")).to_contain_text(rounded(report["totals"]["allocated_gpu_hours"]))
    several = page.locator("td.name", has_text=re.compile(r"\d+ runs")).first
    name = several.get_by_role("button").inner_text()
    several.get_by_role("button").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    _check_total_of_runs(page, response.value.url, name)
    expect(page.locator("tbody td.name a").first).to_have_attribute("href", re.compile(r"span=run"))
    page.get_by_role("navigation", name="Breadcrumb").get_by_role("button", name="All namespaces").click()
    expect(page.get_by_role("heading", name="GPU hours by namespace")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def _check_total_of_runs(page: Page, report: str, name: str) -> None:
    """Compare the total with a report of the same moment: the demo still adds hours of the past."""
    for _ in range(10):
        rows = page.request.get(report).json()["data"]["rows"]
        hours = sum(row["gpu_hours"] for row in rows if row["name"] == name)
        page.reload()
        if rounded(hours).search(page.locator(".card tfoot tr").inner_text()):
            return
    pytest.fail(f"the total is {page.locator('.card tfoot tr').inner_text()}, that of the report is {hours}")


def test_days_that_were_hardly_observed_are_compared_with_nothing(demo: Demo, page: Page) -> None:
    today = fixed_day(page)
    open_page(demo, page, "usage?period=today")
    against = page.locator(".usage-stats").get_by_text("against")
    expect(against.first).to_be_visible()

    earlier = re.compile(rf"/report\?(?!.*\.\.{today}).*series=")

    def shorten(route: Route) -> None:
        answer = route.fetch().json()
        answer["data"]["hours_accounted"] = 3.4
        route.fulfill(json=answer)

    page.route(earlier, shorten)
    with page.expect_response(earlier):
        page.reload()
    expect(page.locator(".usage-stats")).to_be_visible()
    expect(against).to_have_count(0)
    expect(page.get_by_role("columnheader", name="Change")).to_have_count(0)


def test_cost_and_energy_are_drawn_over_time_and_as_areas(demo: Demo, page: Page) -> None:
    report = report_of(demo, page, "usage")
    groups = [row for row in report["rows"] if row["row"] == "group"]
    expect(page.locator(".tile")).to_have_count(len(groups))
    page.get_by_role("radio", name="Cost", exact=True).click()
    expect(page.get_by_role("heading", name=f"Cost per hour ({report['currency']})")).to_be_visible()
    page.get_by_role("radio", name="Cumulative").click()
    expect(page).to_have_url(re.compile("metric=cost&mode=sum"))
    legend = page.locator("figure.chart").first.locator(".legend .key")
    shown = [float(key.locator("b").inner_text().replace(",", "").replace("k", "e3")) for key in legend.all()]
    assert sum(shown[: len(report["series"]["lines"])]) == pytest.approx(report["totals"]["cost"], rel=0.02)
    page.get_by_role("radio", name="Energy").click()
    expect(page.get_by_role("heading", name="Energy, cumulative (kWh)")).to_be_visible()
    page.locator(".tile").first.click()
    expect(page).to_have_url(re.compile("ns="))


def test_a_chart_is_saved_as_csv_and_as_a_picture(demo: Demo, page: Page) -> None:
    report = report_of(demo, page, "usage")
    chart = page.locator("figure.chart").first
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0].startswith(f"time,{report['series']['lines'][0]['name']},")
    assert len(lines) > len(report["series"]["times"])
    for figure in (chart, page.locator("figure.treemap")):
        with page.expect_download() as download:
            figure.get_by_role("button", name="PNG").click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_reversed_dates_are_explained_and_not_requested(demo: Demo, page: Page) -> None:
    open_page(demo, page, "usage?period=dates&from=2026-01-05&to=2026-01-09")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.get_by_label("Last day").fill("2026-01-01")
    expect(page.get_by_text("The last day is before the first.")).to_be_visible()
    assert not [url for url in requested if "/report" in url and "2026-01-01" in url]
    page.get_by_label("First day").fill("2026-01-01")
    expect(page).to_have_url(re.compile("from=2026-01-01&to=2026-01-01"))
    open_page(demo, page, "usage?period=dates&from=2026-01-05&to=2026-01-01")
    expect(page.get_by_role("alert")).to_have_text("The last day is before the first.")


def test_days_are_those_of_the_chosen_zone(demo: Demo, browser: Browser) -> None:
    context = browser.new_context(timezone_id="Asia/Tokyo")
    page = context.new_page()
    with page.expect_request(re.compile("/report.*zone=Asia%2FTokyo")):
        page.goto(f"{demo.address}#/usage?period=month")
    expect(page.locator(".page-title")).to_contain_text("Asia/Tokyo")
    expect(page.locator("figure.chart .legend").first).not_to_contain_text(re.compile(r"\d\d:\d\d"))
    with page.expect_request(lambda request: "/report" in request.url and "zone=" not in request.url):
        page.get_by_title("Times in local time or UTC").click()
    expect(page.locator(".page-title")).to_contain_text("UTC")
    context.close()


def test_a_team_keeps_its_colour_in_other_ranges(demo: Demo, page: Page) -> None:
    def colours(path: str) -> dict[str, str]:
        report_of(demo, page, path)
        tiles = page.locator(".tile").all()
        return {
            str(tile.get_attribute("title")).split(":")[0]: tile.evaluate("e => e.style.background")
            for tile in tiles
        }

    week, day = colours("usage"), colours("usage?period=today")
    assert len(set(week.values())) == len(week)
    assert {name: week[name] for name in day} == day


QUEUE = {
    "name": "research",
    "parent": "",
    "weight": 1,
    "guaranteed": 0,
    "guaranteedModels": {},
    "limit": None,
    "used": 1.0,
    "usedGuaranteed": 0.0,
    "borrowed": 0.0,
    "pending": 0.0,
    "share": 0.5,
    "models": {},
    "accountedUntil": None,
    "conditions": [],
    "createdAt": None,
    "budget": {
        "unit": "gpuHours",
        "period": "Week",
        "hard": False,
        "total": 5000.0,
        "used": 4300.0,
        "percent": 86,
        "renewedAt": None,
    },
}


def test_budgets_and_forecasts_are_drawn(demo: Demo, page: Page) -> None:
    report = demo.get(f"{AGGREGATION}/namespaces")
    namespace = report[0] if isinstance(report[0], str) else report[0]["name"]
    queues = {"data": {"data": [{**QUEUE, "namespaces": [namespace]}], "total": 1}}
    page.route(re.compile("api/queues"), lambda route: route.fulfill(json=queues))

    def forecast(route: Route) -> None:
        name = namespace if "by=namespace" in route.request.url else ""
        hours = [f"2030-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z" for hour in range(72)]
        points = [{"time": at, "expected": 50.0, "low": 40.0, "high": 60.0} for at in hours]
        group = {"name": name, "points": points, "capacity": 64, "capacityExceeded": None}
        group |= {"capacityExceededEarliest": None, "budgetSpent": None, "budgetSpentEarliest": None}
        route.fulfill(json={"data": {"data": [group]}})

    page.route(re.compile("api/forecast"), forecast)
    report_of(demo, page, "usage")
    row = page.get_by_role("region", name="Budgets").locator("tbody tr")
    expect(row).to_contain_text("4,300 GPU hours")
    expect(row).to_contain_text("Tue 1 Jan, expected")  # 700 hours at 50 GPUs are used up after 14
    expect(page.get_by_text("Expected in the next 3 days: 3,600 GPU hours")).to_be_visible()
    expect(page.locator("figure.chart").nth(1).locator(".legend")).to_contain_text("GPUs in the cluster 64")
    report_of(demo, page, f"usage?ns={namespace}&mode=sum")
    legend = page.locator("figure.chart").first.locator(".legend")
    expect(legend).to_contain_text("budget of queue research 5,000")
    expect(page.get_by_role("button", name=re.compile("Notifications, .* new"))).to_be_visible()
    assert serious_violations(page) == []


def test_the_planner_says_what_would_fit_and_leases_are_searched(demo: Demo, page: Page) -> None:
    open_page(demo, page, "scheduling?count=1")
    answer = demo.get("api/queue/fit?gpus=1&grouping=contiguous")
    verdict = page.locator(".verdict").first
    expect(verdict).to_contain_text("Yes" if answer["fits"] else "No")
    options = page.get_by_label("Model", exact=True).locator("option").all_inner_texts()
    assert len(set(options)) == len(options)
    page.get_by_label("CPUs per pod").fill("100000")
    expect(verdict).to_contain_text(re.compile("No.*CPU", re.DOTALL))
    page.get_by_label("CPUs per pod").fill("many")
    expect(page.get_by_text("such as 8", exact=True)).to_be_visible()
    page.get_by_label("CPUs per pod").fill("")
    field = page.get_by_label("GPUs", exact=True)
    field.press("Control+a")
    field.press_sequentially("64")
    expect(verdict).to_contain_text(re.compile(r"Position \d+ in the queue"))
    lease = demo.first("api/leases?pageSize=1")
    pod = lease["holders"][0]
    rows = page.get_by_role("region", name="Leases").locator("tbody tr")
    page.get_by_label("Find a node, pod or claim").fill(pod["podName"])
    total = demo.get(f"api/leases?search={pod['podName']}")["total"]
    expect(rows).to_have_count(min(20, total))
    rows.first.get_by_role("link", name=pod["podName"]).first.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page).to_have_url(re.compile("#/workloads/"))
    expect(page.get_by_text("No such workload")).to_have_count(0)


@pytest.mark.parametrize("path", ["usage", "usage?period=month&metric=cost", "scheduling?count=64"])
def test_axe_finds_no_serious_violation_in_charts_and_forms(demo: Demo, page: Page, path: str) -> None:
    open_page(demo, page, path)
    assert serious_violations(page) == []
    page.get_by_role("button", name="Use the light theme").click()
    assert serious_violations(page) == []
