"""Test the map of all GPUs in a real browser: colours, groups, search, details, keyboard, phone, many GPUs."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard.tools.sample_fleet import node_name
from playwright.sync_api import Browser, Locator, Page, expect
from tests.dashboard.accessibility import serious_violations
from tests.dashboard.conftest import NODES, OTHER_NODES, Site

from gpufleet.fleet.workloads.teams import team_of
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices

pytestmark = [pytest.mark.browser, pytest.mark.long]


def open_map(site: Site, page: Page, query: str = "") -> Locator:
    page.goto(f"{site.address}#/?{query}")
    canvas = page.locator("canvas[data-drawn]")
    expect(canvas).to_be_visible()
    canvas.scroll_into_view_if_needed()
    return canvas


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield context.new_page()
    context.close()


def held_by_team(site: Site) -> dict[str, int]:
    """Return how many GPUs each team holds, as the map counts them: unhealthy ones have a colour of their own."""
    fleet, counts = site.cluster.fleet, dict[str, int]()
    for view in fleet.views().values():
        for gpu in view.gpus:
            uids = view.holders.get(gpu.index)
            if uids and view.node.ready and gpu.health.value == "Healthy":
                team = team_of(fleet.workloads()[fleet.ownership.root_of(uids[0])])
                counts[team] = counts.get(team, 0) + 1
    return counts


def test_colours_by_team_count_the_gpus_of_each_and_highlight_one(site: Site, page: Page) -> None:
    canvas = open_map(site, page, "by=team")
    counts = held_by_team(site)
    legend = page.locator(".heat-legend")
    for team, count in counts.items():
        expect(legend.get_by_role("button", name=re.compile(rf"^{team}\s+{count}$"))).to_be_visible()
    legend.get_by_role("button").first.click()
    expect(page).to_have_url(re.compile("find="))
    expect(canvas).to_have_attribute("data-found", re.compile(r"^[1-9]"))


@pytest.mark.parametrize(
    ("choice", "legend"),
    [("Health", "unhealthy"), ("Workload", "more"), ("Age of reading", "old"), ("Power", "W")],
)
def test_every_colouring_has_a_legend(site: Site, page: Page, choice: str, legend: str) -> None:
    open_map(site, page)
    page.get_by_role("radiogroup", name="Colour by").get_by_role("radio", name=choice).click()
    expect(page.locator(".heat-legend")).to_contain_text(legend)


def test_the_map_is_saved_as_csv_and_as_a_picture(site: Site, page: Page) -> None:
    open_map(site, page, "by=team")
    with page.expect_download() as download:
        page.locator(".heat").get_by_role("button", name="CSV").click()
    header, *rows = Path(download.value.path()).read_text().splitlines()
    assert header.startswith("node,gpu,model,state,")
    assert len(rows) == NODES * 8
    assert sum(",allocated," in row for row in rows) >= sum(held_by_team(site).values())
    with page.expect_download() as download:
        page.locator(".heat").get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename.endswith(".png")
    picture = Path(download.value.path()).read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    box = page.locator(".heat canvas").bounding_box()
    assert box is not None
    assert width > box["width"], "the map with a margin"
    assert height > box["height"] + 40, "a title above, a legend below"


def test_free_draining_and_missing_readings_have_different_colours(site: Site, page: Page) -> None:
    open_map(site, page)
    for theme in ("dark", "light"):
        colours = page.evaluate(
            """() => ["free", "none", "drain", "bad", "cordon", "plate"].map((name) =>
                getComputedStyle(document.documentElement).getPropertyValue(`--heat-${name}`).trim())"""
        )
        assert len(set(colours)) == 6, (theme, colours)
        contrast = abs(int(colours[0][1:3], 16) - int(colours[1][1:3], 16))
        assert contrast > 40, f"free and no reading look alike in the {theme} theme"
        if theme == "dark":
            page.get_by_role("button", name="Use the light theme").click()


def test_draining_gpus_and_gpus_without_reading_are_told_apart_from_free_ones(site: Site, page: Page) -> None:
    fleet = site.cluster.fleet
    gpus = (FleetGpu(index=0, draining=True), FleetGpu(index=1), FleetGpu(index=2))

    def add() -> None:
        fleet.put_node(FleetNode(name="silent", gpu_count=3))
        fleet.put_devices(NodeDevices(node="silent", gpus=gpus, total=3))

    site.change(add)
    try:
        open_map(site, page, "by=memory")
        legend = page.locator(".heat-legend")
        expect(legend).to_contain_text("no reading 2")
        expect(legend).to_contain_text("draining 1")
        expect(legend.locator(".swatch.hatched")).to_be_visible()
        page.get_by_role("radio", name="Utilization").first.click()
        expect(legend).to_contain_text(re.compile(r"free \d+"))
    finally:
        site.change(lambda: fleet.drop_node("silent"))


def test_the_map_is_grouped_by_model_zone_and_cluster(site: Site, page: Page) -> None:
    canvas = open_map(site, page)
    group = page.get_by_label("Group by")
    for value, groups in (("model", 2), ("topology.kubernetes.io/zone", 3), ("cluster", 2)):
        group.select_option(value)
        expect(canvas).to_have_attribute("data-groups", str(groups))
    expect(canvas).to_have_attribute("data-total", str((NODES + OTHER_NODES) * 8))
    page.reload()
    expect(group).to_have_value("cluster")


def test_finding_highlights_the_gpus_of_a_workload(site: Site, page: Page) -> None:
    canvas = open_map(site, page)
    workload = max(site.cluster.fleet.workloads().values(), key=lambda each: (each.gpus, each.name))
    page.get_by_label("Find a node, workload, team or user").fill(workload.name)
    expect(page.get_by_text(re.compile(r"\d+ GPUs match"))).to_be_visible()
    expect(canvas).to_have_attribute("data-found", re.compile(r"^[1-9]"))
    page.get_by_label("Find a node, workload, team or user").fill("no such thing")
    expect(page.get_by_text("0 GPUs match")).to_be_visible()


def test_the_details_show_holder_and_metrics_and_their_links_can_be_clicked(site: Site, page: Page) -> None:
    canvas = open_map(site, page)
    canvas.hover(position={"x": 8, "y": 8})
    tip = page.locator(".tip")
    expect(tip).to_contain_text(f"{node_name(0)} GPU 0")
    for words in ("Utilization", "Temperature", "Power", "Memory", "Island"):
        expect(tip).to_contain_text(words)
    fleet = site.cluster.fleet
    holder = fleet.workloads()[fleet.ownership.root_of(fleet.views()[node_name(0)].holders[0][0])]
    tip.get_by_role("link", name=holder.name).click()
    expect(page).to_have_url(re.compile(f"#/workloads/{holder.uid}"))


def test_zooming_with_keys_keeps_the_selected_gpu_in_view(site: Site, page: Page) -> None:
    canvas = open_map(site, page)
    canvas.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    for key in ("+", "+", "+", "+"):
        page.keyboard.press(key)
    expect(canvas).not_to_have_attribute("data-zoom", "1.00")
    selected = page.locator(".heat [aria-live]").inner_text()
    title = page.locator(".tip-title").inner_text()
    assert selected.startswith(title.replace(" GPU", ", GPU"))
    tip, area = page.locator(".tip").bounding_box(), canvas.bounding_box()
    assert tip is not None
    assert area is not None
    assert area["x"] - 1 <= tip["x"] <= area["x"] + area["width"]
    assert area["y"] - 1 <= tip["y"] <= area["y"] + area["height"]
    page.keyboard.press("Tab")
    expect(page.locator(".tip a").first).to_be_focused()


def test_a_tap_shows_the_details_and_nothing_covers_the_map_on_a_phone(site: Site, phone: Page) -> None:
    canvas = open_map(site, phone)
    canvas.tap(position={"x": 10, "y": 10})
    expect(phone.locator(".tip.docked")).to_contain_text(node_name(0))
    assert "#/nodes" not in phone.url
    tools, area = phone.locator(".heat-tools").bounding_box(), canvas.bounding_box()
    assert tools is not None
    assert area is not None
    assert tools["y"] + tools["height"] <= area["y"] + 1
    phone.locator(".tip a").first.click()
    expect(phone).to_have_url(re.compile(f"#/nodes/{node_name(0)}"))


@pytest.mark.parametrize("query", ["by=team&group=topology.kubernetes.io/zone&find=vit", "by=health"])
def test_axe_finds_no_serious_violation_on_the_map(site: Site, page: Page, query: str) -> None:
    canvas = open_map(site, page, query)
    canvas.hover(position={"x": 8, "y": 40})
    assert serious_violations(page) == []
    page.get_by_role("button", name="Use the light theme").click()
    assert serious_violations(page) == []


def test_a_limited_caller_sees_no_names_of_other_namespaces(limited_site: Site, page: Page) -> None:
    page.goto(f"{limited_site.address}#/?by=team")
    page.get_by_label("Token").fill(limited_site.token)
    page.get_by_role("button", name="Log in").click()
    legend = page.locator(".heat-legend")
    expect(legend).to_contain_text("another namespace")
    expect(legend).to_contain_text("research")
    expect(legend).not_to_contain_text("platform")
