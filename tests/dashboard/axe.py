"""What axe finds on a page."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def serious_faults(page: Page) -> list[tuple[str, str]]:
    """Faults of accessibility that keep people out: the rule, and where it is broken."""
    found = Axe().run(page).response["violations"]
    return [
        (each["id"], node["html"])
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
