"""Test each item of the dashboard over a real demo: both themes, desktop and phone, keyboard, console, axe."""

import re
import time

import pytest
from dashboard.tools.demo_process import Demo
from playwright.sync_api import Browser, Page, Route, expect
from tests.dashboard.accessibility import serious_violations
from tests.dashboard.conftest import new_page
from tests.dashboard.test_demo import open_page

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_every_page_is_accessible_and_within_the_screen(demo: Demo, screen: Page) -> None:
    run = demo.first("api/clusters/consumers?pageSize=1")["uid"]
    waiting = demo.first("api/claims?phase=Pending&pageSize=1")
    pages = [
        "",
        "?by=team&group=topology.kubernetes.io/rack",
        "nodes",
        f"nodes/{demo.get('api/nodes?state=partial&pageSize=1')['data'][0]['name']}?span=24h",
        "workloads",
        "workloads?view=timeline",
        f"workloads/{run}?span=run",
        f"compare?runs={run}",
        "queue",
        f"scheduling?claim={waiting['namespace']}/{waiting['name']}",
        "health",
        "usage",
    ]
    for path in pages:
        open_page(demo, screen, path)
        assert (path, serious_violations(screen)) == (path, [])
        assert screen.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert not re.search(r"\b1 (GPUs|nodes|pods|workloads|units)\b", screen.inner_text("main")), path


def test_one_click_on_the_first_page_says_why_a_workload_waits_and_until_when(
    demo: Demo, screen: Page
) -> None:
    open_page(demo, screen, "")
    card = screen.locator(".card", has_text="Waiting for GPUs")
    unit = demo.first("api/queue")
    row = card.locator("li", has_text=unit["claims"][0])
    expect(row).to_contain_text(re.compile(r"in \d+|start unknown"))
    row.get_by_role("link").focus()
    screen.keyboard.press("Enter")
    why = screen.locator(".card", has_text="Why it waits")
    explained = demo.get(f"api/claims/{unit['namespace']}/{unit['claims'][0]}/explain")
    status = next(
        claim["message"]
        for claim in demo.get("api/claims?phase=Pending")["data"]
        if claim["name"] == unit["claims"][0]
    )
    assert status == f"Pending: {explained['sentence']}"
    expect(why).to_contain_text(explained["sentence"])
    expect(why).to_contain_text(
        re.compile(r"Position \d+ in the queue\. (Expected to start in|When it starts is not known)")
    )
    expect(why).to_contain_text(explained["estimate"]["waitsFor"])
    expect(why).to_contain_text(re.compile("Ways to make it fit|No change of its request"))
    for reason, nodes in explained["reasons"].items():
        assert f"{nodes} {reason}" in explained["sentence"]
    for absent in ("Running for", "Allocated GPUs", "Current utilization", "Idle while allocated"):
        expect(screen.get_by_text(absent, exact=True)).to_have_count(0)


def test_units_of_the_queue_open_their_workload(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "queue")
    unit = screen.get_by_role("region", name="Waiting units").locator("tbody tr").first
    name = unit.get_by_role("link").inner_text().removeprefix("gang ")
    expect(unit).to_contain_text("nodes fit:")
    unit.get_by_role("link").click()
    expect(screen.get_by_role("heading", level=1)).to_contain_text(name)
    expect(screen.get_by_role("heading", name="Why it waits")).to_be_visible()


def test_the_gpus_of_a_node_over_time_have_the_colours_of_teams(demo: Demo, desktop: Page) -> None:
    teams = set(demo.get("api/workloadMetadata")["teams"])
    node = demo.first("api/nodes?state=busy&source=k8s&pageSize=1")["name"]
    open_page(demo, desktop, f"nodes/{node}?span=24h")
    keys = desktop.locator(".gantt .key")
    shown = [key.strip() for key in keys.all_inner_texts()]
    assert shown
    assert set(shown) <= teams
    of_node = keys.first.locator(".swatch").evaluate("(swatch) => swatch.style.background")
    text = desktop.locator("a.gantt-bar").first.get_attribute("title")
    assert re.search(r"\d GPUs?, for .+\n.+ – (now|.+\d\d:\d\d)$", text or "")
    open_page(demo, desktop, "workloads?view=timeline")
    team = desktop.locator(".gantt-team", has_text=re.compile(f"^\\s*{shown[0]} "))
    assert team.locator(".swatch").evaluate("(swatch) => swatch.style.background") == of_node


def test_legends_have_last_mean_and_max(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "")
    legend = screen.locator("figure.chart .key").first
    expect(legend).to_contain_text(re.compile(r"allocated\s*\d+%\s*mean \d+%, max \d+%"))
    screen.get_by_text("Last, mean and max").first.click()
    expect(screen.locator("figure.chart table th").nth(1)).to_have_text("Last")


@pytest.mark.parametrize(
    "query", ["from=1731900000&to=99999999999999", "from=9&to=1", "from=x&to=y", "span=zz"]
)
def test_an_impossible_range_in_the_url_shows_the_last_hour(demo: Demo, desktop: Page, query: str) -> None:
    run = demo.first("api/clusters/consumers?pageSize=1")["uid"]
    open_page(demo, desktop, f"workloads/{run}?{query}")
    expect(desktop.locator("figure.chart").first).to_be_visible()
    expect(desktop.get_by_role("alert")).to_have_count(0)


def test_too_long_a_range_is_explained(demo: Demo, desktop: Page) -> None:
    run = demo.first("api/clusters/consumers?pageSize=1")["uid"]
    open_page(demo, desktop, f"workloads/{run}")
    desktop.get_by_label("Choose any time range").click()
    desktop.get_by_label("From").fill("2020-01-01T00:00")
    desktop.get_by_role("button", name="Show").click()
    expect(desktop.get_by_role("alert")).to_have_text("Choose at most 92 days.")


def test_too_large_a_number_becomes_the_largest_one(demo: Demo, screen: Page) -> None:
    open_page(demo, screen, "scheduling")
    field = screen.get_by_label("GPUs", exact=True)
    field.select_text()
    screen.keyboard.type("8")
    expect(field).to_have_value("8")
    expect(screen.get_by_role("status").filter(has_text="GPUs would")).to_contain_text("8 GPUs would")
    screen.keyboard.type("000")
    expect(field).to_have_attribute("aria-invalid", "true")
    screen.keyboard.press("Tab")
    expect(field).to_have_value("64")
    expect(screen).to_have_url(re.compile("count=64"))
    verdict = screen.get_by_role("status").filter(has_text="64 GPUs would wait:")
    expect(verdict).to_contain_text("When it starts is not known. It waits for a node with 64 GPUs")


def test_the_palette_finds_teams_with_the_keyboard_only(demo: Demo, desktop: Page) -> None:
    team = demo.get("api/workloadMetadata")["teams"][0]
    open_page(demo, desktop, "")
    desktop.keyboard.press("Control+k")
    desktop.keyboard.type(team)
    expect(desktop.get_by_role("option", name=f"{team} Team")).to_be_visible()
    desktop.keyboard.press("Enter")
    expect(desktop).to_have_url(re.compile(f"#/workloads[?]team={team}$"))


def test_the_api_documentation_has_an_icon(demo: Demo, desktop: Page) -> None:
    for path in ("docs", "favicon.ico"):
        response = desktop.goto(demo.address + path)
        assert response is not None
        assert response.ok
        assert path != "favicon.ico" or response.headers["content-type"] == "image/svg+xml"


def test_pages_before_the_first_are_the_first(demo: Demo, desktop: Page) -> None:
    open_page(demo, desktop, "workloads?page=-1")
    expect(desktop.locator("tbody tr").first).to_be_visible()
    expect(desktop.locator(".pager")).to_contain_text("1–25 of")


def test_nothing_moves_with_reduced_motion(demo: Demo, browser: Browser) -> None:
    page = new_page(browser, "light", "phone", [])
    open_page(demo, page, "")
    moving = """[...document.querySelectorAll("*")].map((each) => getComputedStyle(each)).filter((style) =>
        parseFloat(style.transitionDuration) > 0.01 ||
        (style.animationName !== "none" && parseFloat(style.animationDuration) > 0.01)).length"""
    assert page.evaluate(moving) == 0
    page.context.close()


def test_a_deleted_workload_points_to_its_hours(demo: Demo, page: Page) -> None:
    page.goto(f"{demo.address}#/workloads/no-such")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such workload in this cluster")
    page.get_by_role("main").get_by_role("link", name="Usage").click()
    expect(page).to_have_url(re.compile("#/usage[?]by=workload"))


def test_runs_that_are_compared_have_their_own_last_value(demo: Demo, desktop: Page) -> None:
    trained = [
        row["uid"]
        for row in demo.get("api/workloads?kind=PyTorchJob&pageSize=20")["data"]
        if row["status"] in ("Running", "Completed")
    ]
    open_page(demo, desktop, f"compare?runs={','.join(trained[:3])}")
    legend = desktop.locator("figure.chart").first.locator(".key b")
    expect(legend.first).to_be_visible()
    assert "–" not in legend.all_inner_texts()


def test_a_workload_that_has_ended_shows_its_whole_run_and_no_claim(demo: Demo, screen: Page) -> None:
    ended = next(
        row
        for row in demo.get("api/workloads?status=Completed&kind=Job&pageSize=100")["data"]
        if demo.get(f"api/workloads/{row['uid']}")["claims"]
    )
    open_page(demo, screen, f"workloads/{ended['uid']}")
    expect(screen.get_by_role("radio", name="Whole run")).to_be_checked()
    expect(screen.get_by_text("Ran for", exact=True)).to_be_visible()
    expect(screen.get_by_role("region", name="Pods").locator("tbody tr").first).to_contain_text("Completed")
    for absent in ("Claim", "Current utilization", "Idle while allocated"):
        expect(screen.get_by_text(absent, exact=True)).to_have_count(0)


def test_the_gpus_of_a_node_that_is_not_ready_are_not_free(demo: Demo, desktop: Page) -> None:
    node = next(row for row in demo.get("api/nodes?state=faulty")["data"] if not row["ready"])
    open_page(demo, desktop, f"nodes/{node['name']}")
    expect(desktop.locator(".gpu-holder").first).to_have_text("not available")
    expect(desktop.locator(".page-title")).not_to_contain_text("–")


def test_the_chart_of_the_overview_has_any_range(demo: Demo, desktop: Page) -> None:
    open_page(demo, desktop, "")
    expect(desktop.get_by_role("radio", name="7 d")).to_be_checked()
    desktop.get_by_role("radio", name="24 h").click()
    expect(desktop).to_have_url(re.compile("span=24h"))
    plot = desktop.locator("figure.chart .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    desktop.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)
    desktop.mouse.down()
    desktop.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=4)
    desktop.mouse.up()
    expect(desktop).to_have_url(re.compile(r"from=\d+&to=\d+"))
    desktop.go_back()
    expect(desktop).to_have_url(re.compile(r"span=24h$"))


def test_a_department_has_what_its_queues_have(demo: Demo, screen: Page) -> None:
    queues = demo.get("api/queues")["data"]
    department = next(queue for queue in queues if any(each["parent"] == queue["name"] for each in queues))
    own = [queue for queue in queues if queue["parent"] == department["name"]]
    assert department["share"] == 0 < sum(queue["share"] for queue in own)
    open_page(demo, screen, "queue")
    rows = screen.get_by_role("region", name="GpuQueues").locator("tbody tr")
    names = [row.split("\n")[0].strip() for row in rows.all_inner_texts()]
    at = names.index(department["name"])
    assert set(names[at + 1 : at + 1 + len(own)]) == {queue["name"] for queue in own}
    share = rows.nth(at).locator("td[data-label='Share of recent use']")
    expect(share).to_contain_text(re.compile(r"^[1-9]\d*%.*its fair share"))
    for unit in demo.get("api/queue")["data"]:
        assert unit["gpus"] > 0
    waiting = sum(unit["gpus"] for unit in demo.get("api/queue")["data"])
    cells = rows.locator("td[data-label='Waiting']").all_inner_texts()
    shown = {name: float(cell) for name, cell in zip(names, cells, strict=True)}
    assert sum(shown[queue["name"]] for queue in queues if not queue["parent"]) == waiting


def test_jobs_of_slurm_wait_with_the_start_that_slurm_expects(demo: Demo, screen: Page) -> None:
    def pretend(route: Route) -> None:
        found = route.fetch().json()
        row = demo.first("api/workloads?kind=SlurmJob&pageSize=1")
        job = row | {"status": "Pending", "expectedStart": int(time.time()) + 1800, "waitingReason": "waits"}
        # Others may wait now, too, and the card shows only a few.
        found["data"] = {"data": [job], "total": 1}
        route.fulfill(json=found)

    screen.route("**/api/workloads?*status=Pending*", pretend)
    open_page(demo, screen, "")
    card = screen.locator(".card", has_text="Waiting for GPUs")
    expect(card).to_contain_text(re.compile(r"in (29m|30m)"))
    card.get_by_role("link", name="Queue").click()
    other = screen.get_by_role("region", name="Waiting in other queues")
    expect(other.locator("tbody tr")).to_contain_text([re.compile(r"waits.*in (29m|30m)", re.DOTALL)])


def test_a_gpu_with_mig_instances_shows_their_profiles(demo: Demo, desktop: Page) -> None:
    nodes = (demo.get(f"api/nodes/{row['name']}") for row in demo.get("api/nodes?pageSize=100")["data"])
    node, gpu = next((node, gpu) for node in nodes for gpu in node["gpus"] if gpu["migProfiles"])
    open_page(demo, desktop, f"nodes/{node['name']}")
    tile = desktop.locator(".gpu", has=desktop.get_by_text(f"GPU {gpu['index']}", exact=True))
    profile = gpu["migProfiles"][0]
    expect(tile).to_contain_text(f"MIG {gpu['migProfiles'].count(profile)} × {profile}")


def test_a_waiting_row_has_no_start_and_the_sentence_of_explain(demo: Demo, desktop: Page) -> None:
    waiting = next(row for row in demo.get("api/workloads?status=Pending")["data"] if row["claims"])
    why = demo.get(f"api/claims/{waiting['namespace']}/{waiting['claims'][0]}/explain")
    open_page(demo, desktop, "workloads?status=Pending")
    row = desktop.locator(f"tbody tr:has(a[href='#/workloads/{waiting['uid']}'])")
    expect(row.locator("td[data-label='Started']")).to_have_text("–")
    expect(row.locator(".clamped")).to_have_text(why["sentence"])
    assert desktop.evaluate(
        "[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth <= e.clientWidth)"
    )


def test_a_running_workload_says_why_one_of_its_pods_waits(demo: Demo, screen: Page) -> None:
    run = demo.first("api/clusters/consumers?pageSize=1")["uid"]
    claim = demo.first("api/claims?phase=Pending&pageSize=1")

    def pretend(route: Route) -> None:
        found = route.fetch().json()
        late = {"podNamespace": claim["namespace"], "podName": "late", "nodeName": ""}
        found["data"]["pods"].append(late | {"status": "Pending", "claim": claim["name"]})
        found["data"]["namespace"] = claim["namespace"]
        route.fulfill(json=found)

    screen.route(re.compile(f"api/workloads/{run}([?].*)?$"), pretend)
    open_page(demo, screen, f"workloads/{run}")
    why = demo.get(f"api/claims/{claim['namespace']}/{claim['name']}/explain")
    expect(screen.locator(".card", has_text="Why a pod waits")).to_contain_text(why["sentence"])
    expect(screen.get_by_text("Running for", exact=True)).to_be_visible()
