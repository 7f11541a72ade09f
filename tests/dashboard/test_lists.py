"""Test the lists of nodes and workloads, the comparison of runs and the time line of teams in a real browser."""

import re
from collections.abc import Iterator

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Browser, Page, expect
from tests.dashboard.accessibility import serious_violations
from tests.dashboard.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("page_path", ["nodes", "workloads"])
def test_lists_are_filtered_by_team_and_user(site: Site, page: Page, page_path: str) -> None:
    meta = page.request.get(f"{site.address}api/workloadMetadata").json()["data"]
    page.goto(f"{site.address}#/{page_path}")
    for label, values in (("Team", meta["teams"]), ("User", meta["users"])):
        page.get_by_label(label, exact=True).select_option(values[0])
        query = f"{label.lower()}={values[0]}"
        total = page.request.get(f"{site.address}api/{page_path}?{query}&pageSize=1").json()["data"]["total"]
        assert total
        expect(page.get_by_text(f"{total} match")).to_be_visible()
        page.get_by_role("button", name="Clear").click()


@pytest.mark.parametrize("column", ["Status", "Model", "Kind", "Team", "User", "Duration"])
def test_every_column_of_workloads_is_sorted_by_the_server(site: Site, page: Page, column: str) -> None:
    page.goto(f"{site.address}#/workloads")
    expect(page.locator("tbody tr").first).to_be_visible()
    with page.expect_response(re.compile(rf"api/workloads\?.*sort={column.lower()}")) as response:
        page.get_by_role("columnheader").get_by_role("button", name=column, exact=True).click()
    first = response.value.json()["data"]["data"][0]["name"]
    expect(page.locator("tbody tr").first).to_contain_text(first)


def test_the_number_of_rows_of_a_page_can_be_chosen(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads?page=2")
    expect(page.locator("tbody tr").first).to_be_visible()
    total = len(site.cluster.fleet.workloads())
    page.get_by_label("Rows per page").select_option("100")
    expect(page.locator("tbody tr")).to_have_count(min(100, total))
    expect(page).to_have_url(re.compile(r"#/workloads\?size=100$"))


def test_my_workloads_are_one_click_away(locked_site: Site, page: Page) -> None:
    page.goto(f"{locked_site.address}#/workloads")
    page.get_by_label("Token").fill(locked_site.token)
    page.get_by_role("button", name="Log in").click()
    mine = page.get_by_role("button", name="Mine")
    mine.click()
    expect(page).to_have_url(re.compile("user=alice"))
    expect(mine).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_text("No workload matches")).to_be_visible()


@pytest.mark.parametrize("path", ["nodes", "workloads", "workloads/wl-00000"])
def test_tables_are_cards_on_a_phone(site: Site, phone: Page, path: str) -> None:
    phone.goto(f"{site.address}#/{path}")
    rows = phone.locator("table.cards tbody tr")
    expect(rows.first).to_be_visible()
    for cell in rows.first.locator("td:visible").all():
        box = cell.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    label = rows.first.locator("td").nth(1).evaluate("cell => getComputedStyle(cell, '::before').content")
    assert label.strip('"') in ("State", "Status", "Node")
    expect(phone.locator("[aria-busy]")).to_have_count(0)
    assert serious_violations(phone) == []


def test_two_runs_are_compared_by_step_and_by_time(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads?sort=name")
    boxes = page.locator("tbody").get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("link", name="Compare 2 runs").click()
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    expect(page.get_by_role("region", name="Runs").locator("tbody tr")).to_have_count(2)
    name = site.cluster.fleet.workloads()["wl-00000"].name
    page.get_by_label("Add a run by name").fill(name)
    page.get_by_role("button", name=re.compile(f"^{name} ")).first.click()
    expect(page.get_by_role("heading", name="Loss")).to_be_visible()
    chart = page.locator("figure.chart").first
    expect(chart.locator(".legend")).to_contain_text("step")
    page.get_by_role("radio", name="By time since start").click()
    expect(chart.locator(".legend")).to_contain_text(re.compile(r"\d+h|\d+m"))
    expect(page).to_have_url(re.compile("along=elapsed"))
    assert serious_violations(page) == []
    page.get_by_role("button", name=f"Remove {name}").click()
    expect(page.get_by_text("None of these runs has reported training metrics")).to_be_visible()


def test_the_time_line_shows_what_each_team_held(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.address}#/workloads")
    page.get_by_role("radio", name="Time line").click()
    expect(page).to_have_url(re.compile("view=timeline"))
    bar = page.locator("a.gantt-bar").first
    expect(bar).to_be_visible()
    teams = demo.get("api/workloadMetadata")["teams"]
    assert {text.split()[0] for text in page.locator(".gantt-team").all_inner_texts()} <= set(teams)
    assert serious_violations(page) == []
    page.get_by_label("Team", exact=True).select_option(teams[0])
    expect(page.locator(".gantt-team")).to_have_count(1)
    page.locator("a.gantt-bar").first.click()
    expect(page).to_have_url(re.compile("#/workloads/.+"))


def test_a_workload_on_kubernetes_shows_events_log_and_yaml(demo: Demo, page: Page) -> None:
    row = demo.first("api/workloads?status=Running&source=k8s&pageSize=1")
    page.goto(f"{demo.address}#/workloads/{row['uid']}?tab=yaml")
    expect(page.get_by_role("region", name="YAML")).to_contain_text(f"name: {row['name']}")
    page.get_by_role("radio", name="Events").click()
    card = page.locator(".card", has_text="Events, logs and YAML")
    expect(card.locator("[aria-busy]")).to_have_count(0)
    page.get_by_role("radio", name="Logs").click()
    expect(page.get_by_text("Kubernetes has no log of this pod")).to_be_visible()  # no container really runs
    assert serious_violations(page) == []
