"""Test what every page has: saved views, exports, the bell, stale marks, errors once, and the link to the API docs."""

import re
from pathlib import Path

import pytest
from dashboard.tools.sample_fleet import node_name
from playwright.sync_api import BrowserContext, Page, Route, expect
from tests.dashboard.accessibility import serious_violations
from tests.dashboard.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_view_is_saved_opened_found_and_deleted(site: Site, page: Page, context: BrowserContext) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{site.address}#/nodes?state=faulty")
    page.get_by_label("Views and sharing").click()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_text("Link copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_label("Save this view as").fill("Broken nodes")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved “Broken nodes”.")).to_be_visible()
    assert serious_violations(page) == []
    page.goto(f"{site.address}#/workloads")
    page.reload()
    page.get_by_label("Views and sharing").click()
    page.get_by_role("link", name="Broken nodes").click()
    expect(page).to_have_url(f"{site.address}#/nodes?state=faulty")
    page.goto(site.address)
    expect(page.get_by_text("GPUs on")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("broken")
    page.get_by_role("option", name="Broken nodes").click()
    expect(page).to_have_url(f"{site.address}#/nodes?state=faulty")
    page.get_by_label("Views and sharing").click()
    page.get_by_label("Delete view Broken nodes").click()
    expect(page.get_by_role("link", name="Broken nodes")).to_have_count(0)


def test_a_menu_closes_and_says_if_it_cannot_copy(site: Site, page: Page) -> None:
    page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    )  # as without HTTPS
    page.goto(f"{site.address}#/nodes")
    menu = page.get_by_label("Views and sharing")
    body = page.locator(".popover-body")
    menu.click()
    page.get_by_role("button", name="Copy link").click()
    expect(body).to_contain_text("The browser does not allow copying")
    page.keyboard.press("Escape")
    expect(body).to_be_hidden()
    expect(menu).to_be_focused()
    menu.click()
    expect(body).to_be_visible()
    page.get_by_role("heading", level=1).click()
    expect(body).to_be_hidden()


def test_arrows_choose_in_a_group_of_radio_buttons(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/workloads")
    group = page.get_by_role("radiogroup").first
    options = group.get_by_role("radio")
    expect(options.first).to_be_checked()
    assert [option.get_attribute("tabindex") for option in options.all()] == [
        "0",
        *["-1"] * (options.count() - 1),
    ]
    options.first.focus()
    page.keyboard.press("ArrowRight")
    expect(options.nth(1)).to_be_checked()
    expect(options.nth(1)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(options.first).to_be_checked()


def test_unknown_clusters_and_pages_are_named(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes?cluster=moon")
    expect(page.get_by_role("alert")).to_contain_text("This server has no cluster moon.")
    page.get_by_role("link", name="Back to the overview").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.goto(f"{site.address}#/moon")
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")


def test_tables_and_charts_are_saved(site: Site, page: Page) -> None:
    page.goto(f"{site.address}#/nodes/{node_name(5)}")
    processes = page.locator(".card", has_text="Processes")
    with page.expect_download() as download:
        processes.get_by_role("button", name="Save the table as CSV").click()
    assert download.value.suggested_filename == "Processes.csv"
    rows = Path(download.value.path()).read_text().splitlines()
    assert len(rows) == 1 + processes.locator("tbody tr").count()
    with page.expect_download() as download:
        page.locator("figure.chart").first.get_by_role("button", name="PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_every_card_is_marked_while_the_server_is_away(site: Site, page: Page) -> None:
    page.goto(site.address)
    expect(page.get_by_text("GPUs on")).to_be_visible()
    expect(page.locator(".live")).to_contain_text("Live")
    page.route("**/api/**", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    alert = page.get_by_role("alert")
    expect(alert).to_have_count(1)
    expect(alert).to_contain_text("the server can't be reached")
    expect(alert).to_contain_text("Check your network")
    expect(page.locator(".live")).to_contain_text("Reconnecting")
    marks = page.evaluate(
        "[...document.querySelectorAll('.card')].map((e) => getComputedStyle(e, '::after').content)"
    )
    assert len(marks) > 5
    assert all("as of" in mark for mark in marks)
    page.unroute("**/api/**")
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_have_count(0)
    expect(page.locator(".offline")).to_have_count(0)


def test_an_error_is_named_once_however_many_cards_it_concerns(site: Site, page: Page) -> None:
    answer = {"code": 503, "message": "the database is starting", "error": ""}

    def fail(route: Route) -> None:
        route.fulfill(status=503, json=answer)

    page.route(re.compile(r"/api/(nodes|v1|clusters/)"), fail)
    page.goto(f"{site.address}#/nodes/{node_name(5)}")
    expect(page.get_by_text("the database is starting")).to_have_count(1)
    expect(page.get_by_role("alert")).to_contain_text("it tries again by itself")
    expect(page.get_by_text("Not loaded").first).to_be_visible()


def test_the_bell_tells_of_findings_once_and_workloads_can_be_followed(site: Site, page: Page) -> None:
    finding = {
        "node": node_name(5),
        "gpu": 3,
        "signal": "xid-79",
        "severity": "Unhealthy",
        "scope": "GPU",
        "message": "XID 79: GPU has fallen off the bus",
        "action": "reboot",
        "since": "2026-01-01T10:00:00Z",
    }
    answer = {"data": {"data": [finding], "total": 1}}
    page.route(re.compile("api/findings"), lambda route: route.fulfill(json=answer))
    page.goto(f"{site.address}#/workloads/wl-00000")
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Following")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Notifications, 1 new").click()
    dialog = page.get_by_role("dialog", name="Notifications")
    expect(dialog).to_contain_text("XID 79: GPU has fallen off the bus")
    expect(dialog.locator(".chip")).to_contain_text("workload")
    assert serious_violations(page) == []
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Notifications", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Following")).to_be_visible()


def test_the_api_documentation_is_linked_and_shows_code_as_code(site: Site, page: Page) -> None:
    page.goto(site.address)
    page.get_by_role("link", name="API documentation").click()
    expect(page.locator("main details").first).to_be_visible()
    page.evaluate("document.querySelectorAll('main > details').forEach((each) => (each.open = true))")
    expect(page.locator("main .inside form").first).to_be_visible()
    texts = page.locator("header p, main summary, main .inside > p, main td").all_inner_texts()
    assert len(texts) > 50
    assert [text for text in texts if "`" in text] == []
    addresses = page.locator("[href], [src]").evaluate_all(
        "all => all.map((e) => e.getAttribute('href') ?? e.getAttribute('src'))"
    )
    assert [address for address in addresses if address.startswith("/")] == [], "proxies may add a prefix"
    with page.expect_response(f"{site.address}api/clusters") as response:
        page.locator("main .inside form").first.get_by_role("button").click()
    assert response.value.ok
    page.get_by_role("link", name="Dashboard").click()
    expect(page.get_by_text("GPUs on")).to_be_visible()
