"""Take the screenshots in docs/images: every page in both themes, and the overview on a phone.

python -m dashboard.tools.screenshots http://127.0.0.1:8080/ docs/images
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
    "queue": "#/queue",
    "scheduling": "#/scheduling",
    "health": "#/health",
}

SCREEN: ViewportSize = {"width": 1280, "height": 1040}
PHONE: ViewportSize = {"width": 390, "height": 844}


def take(browser: Browser, address: str, folder: Path, pages: list[str], variant: str) -> None:
    """Save one screenshot of each page."""
    size = PHONE if variant == "phone" else SCREEN
    context = browser.new_context(viewport=size, color_scheme="light" if variant == "light" else "dark")
    page = context.new_page()
    page.on("console", lambda message: print("console:", message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: print("page error:", error))
    nodes = context.request.get(f"{address}api/nodes?state=partial&pageSize=1").json()["data"]["data"]
    workloads = context.request.get(f"{address}api/clusters/consumers?pageSize=1").json()["data"]["data"]
    for name in pages:
        page.goto(address + PAGES[name].format(node=nodes[0]["name"], workload=workloads[0]["uid"]))
        page.wait_for_selector("h1")
        page.wait_for_selector("[aria-busy]", state="detached")
        page.wait_for_timeout(2500)  # charts are drawn and fonts load after the data
        page.screenshot(path=str(folder / f"{name}-{variant}.png"))


def main() -> None:
    """Take all screenshots that the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="where a server or demo serves the dashboard")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PAGES), help="pages to take")
    parser.add_argument("--variants", nargs="*", default=["dark", "light", "phone"])
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for variant in args.variants:
            pages = ["overview"] if variant == "phone" else args.only
            take(browser, args.address, args.folder, pages, variant)
        browser.close()


if __name__ == "__main__":
    main()
