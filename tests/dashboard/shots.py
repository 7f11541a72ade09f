"""Take the pictures of docs/images: every page in both themes, and the overview on a phone.

python -m tests.dashboard.shots http://127.0.0.1:8090/ docs/images
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize, sync_playwright

PAGES = {
    "overview": "#/",
    "nodes": "#/nodes",
    "node": "#/nodes/{node}",
    "workloads": "#/workloads",
    "workload": "#/workloads/{workload}?span=24h",
    "usage": "#/usage",
    "scheduling": "#/scheduling",
}

SCREEN: ViewportSize = {"width": 1280, "height": 1040}
PHONE: ViewportSize = {"width": 390, "height": 844}


def take(browser: Browser, address: str, folder: Path, names: list[str], tail: str) -> None:
    """One picture of each page."""
    size = PHONE if tail == "phone" else SCREEN
    context = browser.new_context(viewport=size, color_scheme="light" if tail == "light" else "dark")
    page = context.new_page()
    page.on("console", lambda message: print("console:", message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: print("page error:", error))
    nodes = context.request.get(f"{address}api/nodes?state=partial&pageSize=1").json()["data"]["data"]
    workloads = context.request.get(f"{address}api/clusters/consumers?pageSize=1").json()["data"]["data"]
    for name in names:
        place = PAGES[name].format(node=nodes[0]["name"], workload=workloads[0]["uid"])
        page.goto(address + place)
        page.wait_for_selector("h1")
        page.wait_for_selector("[aria-busy]", state="detached")
        page.wait_for_timeout(2500)  # until lines are drawn and the font is there
        page.screenshot(path=str(folder / f"{name}-{tail}.png"))


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PAGES))
    parser.add_argument("--tails", nargs="*", default=["dark", "light", "phone"])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for tail in given.tails:
            names = ["overview"] if tail == "phone" else given.only
            take(browser, given.address, given.folder, names, tail)
        browser.close()


if __name__ == "__main__":
    main()
