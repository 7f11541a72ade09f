"""Check a page with axe."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def serious_violations(page: Page) -> list[tuple[str, str]]:
    """Return the broken rule and the HTML element of each serious or critical violation."""
    violations = Axe().run(page).response["violations"]
    return [
        (violation["id"], node["html"])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
