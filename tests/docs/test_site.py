"""The built site: strict, complete, without anything from other hosts, and searchable offline."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from tests.docs.pages import ROOT

pytestmark = pytest.mark.long

_LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
    "embed": "src",
}
"""Attributes whose address the browser loads by itself. Links that a reader clicks are not among them."""


class Resources(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if address := values.get(_LOADED.get(tag, "")):
            self.addresses.append(address)
        self.addresses += re.findall(r"url\(([^)]+)\)", values.get("style") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    done = subprocess.run(
        [*command, "--config-file", "docsite/mkdocs.yml", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        found = Resources()
        found.feed(page.read_text())
        outside = [each for each in found.addresses if re.match(r"[a-z]*:?//", each.strip("'\""))]
        assert outside == [], page.name


def test_no_style_sheet_loads_anything_from_another_host(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_generated_pages_and_pictures_are_on_the_site(site: Path) -> None:
    assert "gpufleet explain" in (site / "cli-reference.html").read_text()
    assert "/api/v1/gpu-aggregation/report" in (site / "api-reference.html").read_text()
    assert (site / "project/mixin.html").exists()
    assert (site / "runbooks/GpuXid.html").exists()
    concepts = (site / "concepts.html").read_text()
    assert all(name.name in concepts for name in (site / "images/concepts").iterdir())


@pytest.fixture(scope="module")
def requests(site: Path) -> Iterator[list[str]]:
    """Search the site in a browser, from its files; return the addresses that were requested."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = browser.new_page()
        seen: list[str] = []
        page.on("request", lambda request: seen.append(request.url))
        page.goto(f"file://{site}/index.html")
        page.locator("[data-md-component=search-query]").press_sequentially("backfill")
        page.locator(".md-search-result__link").first.wait_for(timeout=60_000)
        page.goto(f"file://{site}/concepts.html")
        widths = page.locator("article img").evaluate_all("images => images.map(each => each.naturalWidth)")
        assert len(widths) >= 5
        assert all(widths)
        yield seen
        browser.close()


@pytest.mark.browser
def test_search_works_from_files_and_requests_nothing_else(requests: list[str]) -> None:
    assert requests
    assert [each for each in requests if not each.startswith(("file://", "data:", "blob:"))] == []
