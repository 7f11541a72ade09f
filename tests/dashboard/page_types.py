"""The types of the page, made from what a real server says of itself.

python -m tests.dashboard.page_types     # writes dashboard/src/api/schema.ts anew
"""

import subprocess
import sys
from pathlib import Path

from tests.dashboard.demo import running_demo

DASHBOARD = Path(__file__).parents[2] / "dashboard"
SCHEMA = DASHBOARD / "src" / "api" / "schema.ts"


def write_types(address: str, target: Path) -> None:
    """Generate the types of the server at `address` into `target`."""
    words = ["npm", "run", "--silent", "types", "--", f"{address}openapi.json", "-o", str(target)]
    subprocess.run(words, cwd=DASHBOARD, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    with running_demo(nodes=1, days=0) as demo:
        write_types(demo.address, SCHEMA)
    print(f"wrote {SCHEMA}", file=sys.stderr)
