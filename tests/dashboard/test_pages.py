"""Test every page in a real browser: content, filters, live changes, errors, keyboard, phone, accessibility."""

import re

import msgspec
import pytest
from dashboard.tools.sample_fleet import HTML_LABEL, node_name
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect
from tests.dashboard.accessibility import serious_violations
from tests.dashboard.conftest import NODES, OTHER_NODES, Site
from tests.oidc_provider import Provider
from tests.waiting import block_until

from gpufleet.fleet.overview import overview
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.model.workload import FleetPod, Status

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_the_overview_shows_the_numbers_of_the_fleet(site: Site, page: Page) -> None:
    seen = overview(site.cluster.fleet)
    page.goto(site.address)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(
        page.get_by_text(f"{seen.schedulable_allocated} of {seen.schedulable} schedulable GPUs")
    ).to_be_visible()
    expect(page.get_by_text("Simulated fleet.")).to_be_visible()
    expect(page.locator("canvas")).to_have_attribute("data-total", str(NODES * 8))
    faulty = page.get_by_role("link", name=re.compile("faulty$"))
    expect(faulty).to_contain_text(str(seen.faulty))


def test_a_click_on_the_map_opens_the_gpu(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.locator("canvas").click(position={"x": 8, "y": 8})
    expect(page).to_have_url(re.compile(r"#/nodes/gpu-a00000\?gpu=0"))
    expect(page.locator(".gpu.chosen")).to_contain_text("GPU 0")


def test_arrow_keys_move_over_the_map_and_announce_the_gpu(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.locator("canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator(".heat [aria-live]")).to_contain_text("gpu-a00000, GPU 5")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/nodes/gpu-a00000\?gpu=5"))


def test_the_colour_scale_of_the_map_is_kept_in_the_url(site: Site, page: Page) -> None:
    page.goto(site.address)
    temperature = page.get_by_role("radiogroup", name="Colour by").get_by_role("radio", name="Temperature")
    temperature.click()
    expect(page).to_have_url(re.compile("by=temperature"))
    expect(page.locator("canvas")).to_have_attribute("aria-label", re.compile("by temperature"))
    page.reload()
    expect(temperature).to_have_attribute("aria-checked", "true")


def test_a_change_of_the_fleet_appears_without_reloading(site: Site, page: Page) -> None:
    fleet = site.cluster.fleet
    node = fleet.views()[node_name(3)].node
    page.goto(site.address)
    expect(page.locator(".live")).to_contain_text("Live")
    site.change(
        lambda: fleet.put_node(msgspec.structs.replace(node, ready=False, not_ready_reason="lost contact"))
    )
    try:
        expect(page.locator(".feed").get_by_text("lost contact")).to_be_visible()
        expect(
            page.locator(".card", has_text="Faults").locator(".list").get_by_text("lost contact")
        ).to_be_visible()
    finally:
        site.change(lambda: fleet.put_node(node))


def test_nodes_are_filtered_by_state_and_name(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes")
    page.get_by_role("radio", name="Faulty").click()
    rows = page.locator("tbody tr")
    seen = overview(site.cluster.fleet)
    expect(rows).to_have_count(seen.faulty)
    expect(page).to_have_url(re.compile("state=faulty"))
    page.get_by_role("radio", name="All").click()
    page.keyboard.press("/")
    page.keyboard.type("c00005")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("name=c00005"))
    page.get_by_label("Find a node").fill("no such node")
    expect(page.get_by_text("No node matches")).to_be_visible()


def test_a_node_shows_islands_holders_processes_and_faults(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes/{node_name(5)}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(node_name(5))
    expect(page.locator(".island")).to_have_count(2)
    expect(page.locator(".gpu")).to_have_count(8)
    expect(page.locator(".gpu.bad")).to_contain_text("XID 79: GPU has fallen off the bus")
    expect(page.get_by_role("region", name="Processes").locator("tbody tr").first).to_be_visible()
    expect(page.locator(".chart-box canvas")).to_have_count(4)
    page.locator(".gpu-holder[href]").first.click()
    expect(page).to_have_url(re.compile("#/workloads/wl-"))


def test_html_in_labels_and_names_is_shown_as_text(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads/wl-00000")
    expect(page.get_by_text(HTML_LABEL)).to_be_visible()
    page.goto(f"{site.address}#/nodes/{node_name(0)}")
    expect(page.get_by_text(HTML_LABEL)).to_be_visible()
    page.goto(f"{site.address}#/nodes/{HTML_LABEL}")
    expect(page.get_by_text("No node <img")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


FILTERS = [("Namespace", "vision"), ("Kind", "Pod"), ("Status", "Failed"), ("Source", "slurm")]


@pytest.mark.parametrize(("label", "value"), FILTERS)
def test_workloads_are_filtered_by_each_field(site: Site, page: Page, label: str, value: str) -> None:
    page.goto(f"{site.address}#/workloads")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_label(label, exact=True).select_option(value)
    expect(page).to_have_url(re.compile(f"{label.lower()}={value}"))
    response = page.request.get(f"{site.address}api/workloads?{label.lower()}={value}&pageSize=1").json()
    total = response["data"]["total"]
    if total:
        expect(page.get_by_text(f"{total} match")).to_be_visible()
    else:
        expect(page.get_by_text("No workload matches")).to_be_visible()
    page.reload()
    expect(page.get_by_label(label, exact=True)).to_have_value(value)


def test_a_workload_shows_graphs_training_tree_and_pods(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads")
    page.get_by_label("Find a workload").fill(site.cluster.fleet.workloads()["wl-00000"].name)
    page.get_by_role("link", name=site.cluster.fleet.workloads()["wl-00000"].name, exact=True).click()
    expect(page.get_by_role("heading", name="Loss")).to_be_visible()
    expect(page.get_by_role("heading", name="MFU")).to_be_visible()
    expect(page.get_by_role("heading", name="GPU Utilization")).to_be_visible()
    expect(page.locator(".tree")).to_contain_text("Pod")
    expect(page.get_by_role("region", name="Pods").locator("tbody tr").first).to_be_visible()


def test_scheduling_says_that_a_cluster_outside_kubernetes_takes_no_pods(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/scheduling?count=8")
    expect(page.get_by_text("This cluster takes no pods: it is not on Kubernetes")).to_be_visible()
    free = [view for view in site.cluster.fleet.views().values() if view.usable == 8 and not view.allocated]
    assert free
    bar = page.locator(".bars li", has_text="8 free")
    expect(bar).to_contain_text(str(len(free)))


@pytest.mark.parametrize("path", ["usage", "scheduling", "queue", "health"])
def test_a_page_whose_routes_are_missing_explains_why(site: Site, page: Page, path: str) -> None:
    page.goto(f"{site.address}#/{path}")
    text = (
        "This server has no hourly statistics"
        if path == "usage"
        else "This server has no Kubernetes cluster with"
    )
    expect(page.get_by_text(text).first).to_be_visible()


def test_when_the_server_is_gone_the_page_keeps_its_last_data_and_shows_its_age(
    site: Site, page: Page
) -> None:
    page.goto(f"{site.address}#/nodes")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.route("**/api/**", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_text("the server can't be reached").first).to_be_visible()
    expect(page.locator("tbody tr").first).to_be_visible()


def test_a_server_error_is_shown_with_its_trace_id(site: Site, page: Page) -> None:
    hours = "**/cluster/hourly-stats?**"  # polled every five minutes, so only the button requests it again
    page.route(
        hours,
        lambda route: route.fulfill(
            status=500,
            headers={"x-trace-id": "abcdef0123456789"},
            json={"code": 500, "message": "the database is down", "error": ""},
        ),
    )
    page.goto(site.address)
    alert = page.get_by_role("alert").filter(has_text="the database is down")
    expect(alert).to_contain_text("abcdef012345")
    page.unroute(hours)
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("This server has no hourly statistics").first).to_be_visible()
    expect(alert).to_have_count(0)


def test_lists_and_the_map_work_with_the_keyboard_only(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_role("button", name="Utilization").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("sort=-utilization"))
    expect(page.get_by_role("columnheader", name="Utilization")).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("sort=utilization"))
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.locator("canvas[data-drawn]").focus()
    for key in ("ArrowRight", "+", "+", "-", "0", "Enter"):
        page.keyboard.press(key)
    expect(page.locator(".gpu.chosen")).to_contain_text("GPU 0")


def test_pages_are_reachable_with_the_keyboard_only(site: Site, page: Page) -> None:
    page.goto(site.address)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Workloads")


def test_the_chosen_cluster_is_shown_and_kept_in_links(site: Site, page: Page) -> None:
    page.goto(site.address)
    expect(page.get_by_text(f"{NODES * 8} GPUs on {NODES} nodes")).to_be_visible()
    switch = page.get_by_label("Cluster", exact=True)
    expect(switch).to_have_value("prod")
    switch.select_option("lab")
    expect(page.get_by_text(f"{OTHER_NODES * 8} GPUs on {OTHER_NODES} nodes")).to_be_visible()
    expect(page.locator("canvas")).to_have_attribute("data-total", str(OTHER_NODES * 8))
    expect(page).to_have_url(re.compile("cluster=lab"))
    page.get_by_role("link", name="Nodes", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(OTHER_NODES)
    page.locator("tbody a").first.click()
    expect(page.locator(".gpu")).to_have_count(8)
    expect(page).to_have_url(re.compile("cluster=lab"))
    switch.select_option("prod")
    page.get_by_role("link", name="Overview", exact=True).click()
    expect(page.get_by_text(f"{NODES * 8} GPUs on {NODES} nodes")).to_be_visible()


def test_two_fingers_zoom_the_map(site: Site, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(site.address)
    canvas = page.locator("canvas[data-zoom]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        touches = [{"x": left, "y": top, "id": number} for number, (left, top) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    touch("touchStart", (x - 20, y))
    touch("touchStart", (x - 20, y), (x + 20, y))
    for distance in (30, 40, 60):
        touch("touchMove", (x - distance, y), (x + distance, y))
    touch("touchEnd")
    expect(canvas).to_have_attribute("data-zoom", re.compile(r"^(1\.[5-9]|[2-9])"))
    assert "#/nodes" not in page.url
    context.close()


def test_theme_and_time_zone_are_remembered(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.get_by_role("button", name="Use the light theme").click()
    page.get_by_title("Times in local time or UTC").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.get_by_title("Times in local time or UTC")).to_contain_text("UTC")


def test_the_page_requests_nothing_from_other_hosts(site: Site, page: Page) -> None:
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    for path in PATHS:
        page.goto(f"{site.address}#/{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert urls
    assert [url for url in urls if not url.startswith(site.address)] == []


def test_the_content_policy_blocks_an_injected_script(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.address)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    ran = page.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = 'window.ran = true';
            document.body.append(script);
            return 'ran' in window;
        }"""
    )
    assert not ran


def test_login_with_a_token_and_logout(locked_site: Site, page: Page) -> None:
    page.goto(locked_site.address)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.headers.get("authorization", "")))
    for _ in range(3):
        page.get_by_label("Token").fill("wrong")
        with page.expect_response(re.compile("/api/")):
            page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("the token is not valid")).to_be_visible()
    assert sent.count("Bearer wrong") == 3, "each wrong token counts against the address"
    page.get_by_label("Token").fill(locked_site.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("GPUs on")).to_be_visible()
    expect(page.locator(".live")).to_contain_text("Live")
    page.reload()
    expect(page.get_by_text("GPUs on")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.evaluate("localStorage.getItem('gpufleet.token')") is None


def test_sign_in_at_the_identity_provider_and_sign_out(
    oidc_site: Site, provider: Provider, page: Page
) -> None:
    page.goto(f"{oidc_site.address}#/nodes?state=faulty")
    expect(page.get_by_label("Token")).to_be_visible()
    page.get_by_role("link", name="Sign in").click()
    page.get_by_role("link", name="Sign in as Alice").click()
    expect(page).to_have_url(f"{oidc_site.address}#/nodes?state=faulty")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
    expect(page.locator(".live")).to_contain_text("Live")
    expect(page.locator(".account")).to_have_text("alice@example.com")
    expect(page.get_by_text("Limited to")).to_have_count(0)
    assert page.evaluate("document.cookie") == "", "scripts can't read the session"
    assert serious_violations(page) == []
    page.reload()
    expect(page.locator(".account")).to_have_text("alice@example.com")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    assert serious_violations(page) == []


def test_a_sign_in_replaces_an_old_token_and_a_limited_view_says_so(
    oidc_site: Site, provider: Provider, page: Page
) -> None:
    provider.user["groups"] = ["nlp"]
    page.goto(oidc_site.address)
    page.evaluate("localStorage.setItem('gpufleet.token', 'gpf_revoked')")
    page.reload()
    expect(page.get_by_text("the token is not valid")).to_be_visible()
    page.get_by_role("link", name="Sign in").click()
    page.get_by_role("link", name="Sign in as Alice").click()
    expect(page.get_by_text("Limited to namespaces nlp, nlp-dev.")).to_be_visible()


def test_a_person_without_permission_sees_why(oidc_site: Site, provider: Provider, page: Page) -> None:
    provider.user["groups"] = []
    page.goto(oidc_site.address)
    page.get_by_role("link", name="Sign in").click()
    page.get_by_role("link", name="Sign in as Alice").click()
    expect(page.get_by_text("alice@example.com has no permission here")).to_be_visible()
    page.get_by_role("link", name="Back to gpufleet").click()
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()


def test_a_caller_who_is_limited_to_namespaces_sees_their_work_and_all_capacity(
    limited_site: Site, page: Page
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(limited_site.address)
    page.get_by_label("Token").fill(limited_site.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("Limited to namespaces research, vision")).to_be_visible()
    expect(page.get_by_text("GPUs on")).to_be_visible()

    def running_elsewhere() -> Workload:
        workloads = limited_site.cluster.fleet.workloads().values()
        return next(
            workload
            for workload in workloads
            if workload.counted and workload.namespace not in ("research", "vision")
        )

    hidden = running_elsewhere()
    for path in ("nodes", "workloads", "usage", "scheduling"):
        page.goto(f"{limited_site.address}#/{path}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.get_by_text(hidden.name)).to_have_count(0)
        expect(page.get_by_text("Limited to namespaces research, vision")).to_be_visible()
    page.goto(f"{limited_site.address}#/workloads/{hidden.uid}")
    expect(page.get_by_text("No such workload in this cluster")).to_be_visible()
    for _ in range(5):  # a workload may end meanwhile, and one of these namespaces gets its GPUs
        page.goto(f"{limited_site.address}#/nodes/{running_elsewhere().counted[0].node}")
        expect(page.locator(".gpu").first).to_be_visible()
        if page.get_by_text("another namespace").count():
            break
    expect(page.get_by_text("another namespace").first).to_be_visible()
    assert [url for url in asked if "/api/findings" in url] == [], "findings take access to every namespace"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_text("Limited to")).to_have_count(0)


PATHS = ["", "nodes", f"nodes/{node_name(5)}", "workloads", "workloads/wl-00000", "usage", "scheduling"]


@pytest.mark.parametrize("path", PATHS[:5])  # test_demo.py checks the others with more data
def test_axe_finds_no_serious_violation_in_either_theme(site: Site, page: Page, path: str) -> None:
    page.goto(f"{site.address}#/{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    assert serious_violations(page) == []
    page.get_by_role("button", name="Use the light theme").click()
    assert serious_violations(page) == []


@pytest.mark.parametrize("path", PATHS)
def test_a_phone_shows_each_page_without_scrolling_sideways(site: Site, browser: Browser, path: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"{site.address}#/{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    width = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert width <= 390


def test_charts_advance_while_the_page_stays_open(site: Site, page: Page) -> None:
    ends: list[int] = []

    def record_end(request: Request) -> None:
        if found := re.search(r"/(metrics|trainingPerformance)\?.*\bend=(\d+)", request.url):
            ends.append(int(found[2][:10]))

    page.on("request", record_end)
    page.clock.install()
    page.goto(f"{site.address}#/workloads/wl-00000")
    expect(page.get_by_role("heading", name="GPU Utilization")).to_be_visible()
    first = max(ends)
    page.clock.fast_forward("10:00")
    with page.expect_request(lambda request: "end=" in request.url):
        page.clock.run_for(61_000)
    page.clock.run_for(1000)
    expect(page.get_by_role("heading", name="GPU Utilization")).to_be_visible()
    assert max(ends) >= first + 600


def test_today_changes_at_midnight(site: Site, page: Page) -> None:
    page.clock.install(time="2026-03-09T23:50:00Z")
    page.goto(f"{site.address}#/usage?period=today")
    expect(page.get_by_text("9 Mar 2026, UTC")).to_be_visible()
    page.clock.run_for(16 * 60_000)
    expect(page.get_by_text("10 Mar 2026, UTC")).to_be_visible()


def test_a_request_timeout_is_shown(site: Site, page: Page) -> None:
    page.clock.install()
    page.goto(f"{site.address}#/nodes")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.route("**/api/nodes?**", lambda _: None)  # never answered
    page.clock.run_for(16_000)
    page.clock.run_for(31_000)
    expect(page.get_by_text("the server did not answer within 30 s").first).to_be_visible()
    expect(page.locator("tbody tr").first).to_be_visible()


def test_allocated_gpus_with_unknown_indices_are_not_shown_as_free(site: Site, page: Page) -> None:
    fleet = site.cluster.fleet
    name = next(name for name, view in fleet.views().items() if view.usable == 8 and not view.allocated)
    pod = FleetPod(uid="somewhere", name="somewhere", namespace="ml", node=name, gpus=3, phase=Status.RUNNING)
    site.change(lambda: fleet.put_pod(pod))
    try:
        page.goto(f"{site.address}#/nodes/{name}")
        expect(page.locator(".gpu")).to_have_count(8)
        expect(page.locator(".gpu-holder").first).to_have_text("3 of these are allocated, not known which")
    finally:
        site.change(lambda: fleet.drop_pod("somewhere", 0.0))


def test_the_palette_finds_nodes_workloads_and_pages(site: Site, page: Page) -> None:
    page.goto(site.address)
    expect(page.get_by_text("GPUs on")).to_be_visible()
    options = page.get_by_role("dialog").get_by_role("option")
    field = page.get_by_role("dialog").get_by_role("combobox")
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type(node_name(5))
    options.filter(has_text=node_name(5)).first.click()
    expect(page).to_have_url(f"{site.address}#/nodes/{node_name(5)}")
    expect(page.get_by_role("dialog")).to_have_count(0)
    workload = next(each for each in site.cluster.fleet.workloads().values() if each.counted)
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type(workload.name)
    expect(options.first).to_contain_text(workload.name)
    page.keyboard.press("Control+a")
    page.keyboard.type("no such thing")
    expect(page.get_by_text("Nothing has “no such thing” in its name.")).to_be_visible()
    page.keyboard.press("Control+a")
    page.keyboard.type("usa")
    expect(options).to_have_text(["Usage" + "page"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Usage", level=1)).to_be_visible()


def test_question_mark_lists_the_shortcuts(site: Site, page: Page) -> None:
    page.goto(site.address)
    expect(page.get_by_text("GPUs on")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_row_opens_its_workload_and_back_returns_to_the_same_place(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads")
    rows = page.locator("tr.clickable")
    rows.nth(20).scroll_into_view_if_needed()
    place = block_until(lambda: page.evaluate("scrollY"))
    name = rows.nth(20).locator("td.name a").inner_text()
    rows.nth(20).locator("td").nth(3).click()
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
    expect(page).to_have_title(f"{name} · gpufleet")
    page.go_back()
    block_until(lambda: abs(page.evaluate("scrollY") - place) < 3)


def test_a_page_past_the_end_says_so(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads?page=9999")
    expect(page.get_by_text("There is no page 9,999")).to_be_visible()
    page.get_by_role("button", name="Last page").click()
    expect(page.locator("tr.clickable").first).to_be_visible()


def test_the_number_of_gpus_can_be_typed_over(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/scheduling")
    field = page.get_by_label("GPUs", exact=True)
    field.press("Control+a")
    field.press_sequentially("8")
    expect(page).to_have_url(re.compile("count=8$"))
    field.press("Control+a")
    field.press_sequentially("100")
    expect(page.get_by_text("1 to 64")).to_be_visible()
    field.press("Tab")
    expect(field).to_have_value("64")


def test_dragging_over_a_chart_zooms_all_charts_and_back_returns(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes/{node_name(5)}?span=6h")
    chart = page.locator(".u-over").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    query = dict(part.split("=") for part in page.url.split("?")[1].split("&"))
    assert int(query["to"]) - int(query["from"]) == pytest.approx(3 * 3600, rel=0.05)
    page.go_back()
    expect(page).to_have_url(re.compile(r"span=6h$"))


def test_any_time_range_can_be_chosen_and_a_reversed_one_is_explained(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes/{node_name(5)}")
    page.get_by_label("Choose any time range").click()
    page.get_by_label("From").fill("2026-01-02T10:00")
    page.get_by_label("To", exact=True).fill("2026-01-02T09:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("The end must be at least a minute after the start.")).to_be_visible()
    page.get_by_label("To", exact=True).fill("2026-01-02T12:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    page.get_by_role("radio", name="24 h").click()
    expect(page).to_have_url(re.compile(r"\?span=24h$"))


def test_the_crosshair_reads_out_all_charts_and_the_legend_hides_lines(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes/{node_name(5)}")
    charts = page.locator("figure.chart")
    expect(charts).to_have_count(4)
    first, second = charts.nth(0), charts.nth(1)
    latest = second.locator(".legend .muted").first.inner_text()
    overlay = first.locator(".u-over")
    overlay.scroll_into_view_if_needed()
    box = overlay.bounding_box()
    assert box is not None
    overlay.hover(position={"x": box["width"] * 0.3, "y": 60})
    expect(first.locator(".readout")).to_be_visible()
    expect(second.locator(".readout")).to_be_hidden()
    expect(second.locator(".legend .muted").first).not_to_have_text(latest)
    key = first.locator(".legend button").first
    key.click()
    expect(key).to_have_attribute("aria-pressed", "false")
    first.get_by_text("Last, mean and max", exact=True).click()
    expect(first.get_by_role("columnheader")).to_have_text(["Line", "Last", "Mean", "Max"])


def test_chart_ticks_are_at_whole_hours_of_the_chosen_time_zone(site: Site, browser: Browser) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata")
    page = context.new_page()
    page.add_init_script(
        """window.drawn = []; const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
          window.drawn.push(String(text)); return draw.call(this, text, ...rest); }"""
    )
    page.goto(f"{site.address}#/nodes/{node_name(5)}?span=24h")
    page.get_by_title("Times in local time or UTC").click()
    page.evaluate("window.drawn = []")
    page.reload()
    expect(page.locator(".chart-box canvas")).to_have_count(4)
    hours: list[str] = []
    for _ in range(100):
        hours = [text for text in page.evaluate("window.drawn") if re.fullmatch(r"\d\d:\d\d", text)]
        if hours:
            break
        page.wait_for_timeout(100)
    context.close()
    assert {text[3:] for text in hours} == {"00"}
