"""Use each item of the dashboard by the keyboard alone, over a real demo: both themes, desktop and phone."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Locator, Page, expect
from tests.dashboard.test_demo import open_page

pytestmark = [pytest.mark.browser, pytest.mark.long]
MOST_TABS = 200


def reach(page: Page, target: Locator) -> None:
    """Press Tab until `target` has the focus."""
    expect(target).to_be_visible()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if target.evaluate("(element) => element === document.activeElement"):
            return
    pytest.fail(f"Tab does not reach {target}")


def press(page: Page, target: Locator, key: str = "Enter") -> None:
    """Press a key on an element that Tab reaches."""
    reach(page, target)
    page.keyboard.press(key)


def choose(page: Page, radio: Locator) -> None:
    """Choose one of a group with the arrow keys; Tab reaches the one that is chosen."""
    group = radio.locator("xpath=..")
    reach(page, group.locator("[tabindex='0']"))
    for _ in range(group.get_by_role("radio").count()):
        if radio.is_checked():
            return
        page.keyboard.press("ArrowRight")
        expect(page.locator(":focus")).to_be_checked()
    expect(radio).to_be_checked()


def test_a_range_is_chosen_and_lines_are_hidden(demo: Demo, screen: Page) -> None:
    run = demo.first("api/clusters/consumers?pageSize=1")["uid"]
    open_page(demo, screen, f"workloads/{run}")
    choose(screen, screen.get_by_role("radio", name="Whole run"))
    press(screen, screen.get_by_label("Choose any time range"))
    reach(screen, screen.get_by_label("From", exact=True))
    began = datetime.now(UTC) - timedelta(hours=20)
    screen.keyboard.type(f"{began:%m%d%Y}")
    screen.keyboard.press("ArrowRight")  # to the hour
    screen.keyboard.type(f"{began:%I%M%p}")
    with screen.expect_response(re.compile(rf"workloads/{run}/metrics")):
        press(screen, screen.get_by_role("button", name="Show", exact=True))
    expect(screen).to_have_url(re.compile(r"from=\d+&to=\d+"))
    expect(screen.locator("[aria-busy='true']")).to_have_count(0)  # the charts of the old range are gone
    line = screen.locator("figure.chart .key").first
    press(screen, line, "Space")
    expect(line).to_have_attribute("aria-pressed", "false")
    press(screen, screen.get_by_title("Back to the preset"))
    expect(screen).not_to_have_url(re.compile("from="))


def test_bars_of_nodes_and_teams_say_who_held_gpus_and_open_them(demo: Demo, screen: Page) -> None:
    node = demo.first("api/nodes?state=busy&source=k8s&pageSize=1")["name"]
    for path in (f"nodes/{node}?span=24h", "workloads?view=timeline"):
        open_page(demo, screen, path)
        bar = screen.locator("a.gantt-bar[aria-label$=' – now']").first
        expect(bar).to_have_attribute("aria-label", re.compile(r" GPUs?, for .+ so far\n"))
        address = bar.get_attribute("href") or ""
        press(screen, bar)
        expect(screen).to_have_url(re.compile(re.escape(address)))
        expect(screen.get_by_role("heading", name="GPUs over time")).to_be_visible()


def test_the_map_is_coloured_searched_zoomed_and_opens_a_workload(demo: Demo, screen: Page) -> None:
    run = demo.first("api/clusters/consumers?pageSize=1")
    open_page(demo, screen, "")
    choose(screen, screen.get_by_role("radio", name="Team", exact=True))
    expect(screen).to_have_url(re.compile("by=team"))
    reach(screen, screen.get_by_role("searchbox"))
    screen.keyboard.type(run["name"])
    gpus = screen.get_by_role("application")
    expect(gpus).to_have_attribute("data-found", re.compile("[1-9]"))
    reach(screen, gpus)
    said = screen.locator(".heat [aria-live]")
    for _ in range(demo.get("api/clusters/overview")["totalGpus"]):
        screen.keyboard.press("ArrowRight")
        if f"held by {run['namespace']}/{run['name']}" in said.inner_text():
            break
    expect(said).to_contain_text(run["name"])
    screen.keyboard.press("+")
    expect(gpus).to_have_attribute("data-zoom", "1.50")
    screen.keyboard.press("w")
    expect(screen).to_have_url(re.compile(f"#/workloads/{run['uid']}$"))


def test_lists_are_searched_sorted_sized_and_opened(demo: Demo, screen: Page) -> None:
    node = demo.first("api/nodes?state=partial&pageSize=1")["name"]
    open_page(demo, screen, "nodes")
    choose(screen, screen.get_by_role("radio", name="Partly free"))
    expect(screen).to_have_url(re.compile("state=partial"))
    choose(screen, screen.get_by_role("radio", name="All"))  # the node may become full
    expect(screen).not_to_have_url(re.compile("state="))
    if (head := screen.locator("th").get_by_role("button", name="GPUs")).first.is_visible():
        press(screen, head.first)  # phones show cards, which have no heads
        expect(screen).to_have_url(re.compile("sort="))
    press(screen, screen.get_by_label("Rows per page"), "ArrowDown")
    expect(screen).to_have_url(re.compile("size=50"))
    screen.keyboard.press("Tab")
    screen.keyboard.press("/")
    screen.keyboard.type(node)
    expect(screen.locator("tbody tr")).to_have_count(1)
    press(screen, screen.locator("tbody").get_by_role("link", name=node))
    expect(screen.get_by_role("heading", level=1)).to_contain_text(node)
    screen.go_back()
    expect(screen).to_have_url(re.compile(f"name={node}"))
    expect(screen.locator("tbody tr")).to_have_count(1)


def test_runs_are_picked_and_compared(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "workloads?kind=PyTorchJob")
    boxes = screen.locator("tbody").get_by_role("checkbox")
    for row in range(2):
        press(screen, boxes.nth(row), "Space")
    press(screen, screen.get_by_role("link", name="Compare 2 runs"))
    expect(screen).to_have_url(re.compile("#/compare[?]runs=.+%2C.+"))
    choose(screen, screen.get_by_role("radio", name="By time since start"))
    expect(screen).to_have_url(re.compile("along=elapsed"))


def test_usage_is_grouped_drilled_down_and_returned_from(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "usage")
    choose(screen, screen.get_by_role("radio", name="Today"))
    expect(screen).to_have_url(re.compile("period="))
    choose(screen, screen.get_by_role("radio", name=re.compile("7 days")))
    namespace = screen.get_by_role("region", name="GPU hours").locator("tbody tr").first.get_by_role("button")
    name = namespace.inner_text()
    press(screen, namespace)
    expect(screen).to_have_url(re.compile(f"ns={name}"))
    expect(screen.locator("[aria-busy]")).to_have_count(0)
    crumbs = screen.get_by_role("navigation", name="Breadcrumb")
    press(screen, crumbs.get_by_role("button", name="All namespaces"))
    expect(screen.get_by_role("heading", name="GPU hours by namespace")).to_be_visible()


def test_the_scheduling_form_is_filled_and_links_lead_on(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "scheduling")
    reach(screen, screen.get_by_label("GPUs", exact=True))
    screen.keyboard.type("2")  # Tab has selected the number
    expect(screen).to_have_url(re.compile("count=2(&|$)"))
    reach(screen, screen.get_by_label("Memory per pod"))
    screen.keyboard.type("64Gi")
    expect(screen).to_have_url(re.compile("memory=64Gi"))
    expect(screen.get_by_role("status").filter(has_text="2 GPUs would")).to_be_visible()
    press(screen, screen.get_by_role("region", name="Claims").locator("tbody").get_by_role("link").first)
    expect(screen.locator("main")).to_be_visible()


def test_pages_views_shortcuts_bell_and_language_need_no_mouse(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "")
    screen.keyboard.press("?")
    shortcuts = screen.get_by_role("dialog", name="Keyboard shortcuts")
    expect(shortcuts).to_be_visible()
    screen.keyboard.press("Escape")
    expect(shortcuts).to_have_count(0)
    screen.keyboard.press("g")
    screen.keyboard.press("q")
    expect(screen).to_have_url(re.compile("#/queue$"))
    press(screen, screen.get_by_label("Views and sharing"))
    reach(screen, screen.get_by_label("Save this view as"))
    screen.keyboard.type("What waits")
    screen.keyboard.press("Enter")
    screen.keyboard.press("Escape")
    screen.keyboard.press("Control+k")
    screen.keyboard.type("what w")
    expect(screen.get_by_role("option", name=re.compile("What waits"))).to_be_visible()
    screen.keyboard.press("Escape")
    press(screen, screen.get_by_role("button", name=re.compile("^Notifications")))
    expect(screen.get_by_label("Namespace to follow")).to_be_visible()
    screen.keyboard.press("Escape")
    reach(screen, screen.get_by_label("Language"))
    screen.keyboard.press("ArrowDown")
    expect(screen.locator("html")).to_have_attribute("lang", re.compile("zh"))
