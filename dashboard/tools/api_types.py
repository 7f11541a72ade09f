"""Generate the dashboard's TypeScript types from the OpenAPI document of a running demo.

python -m dashboard.tools.api_types     # writes dashboard/src/api/schema.ts
"""

import subprocess
import sys
from pathlib import Path

from dashboard.tools.demo_process import running_demo

DASHBOARD = Path(__file__).parents[1]
SCHEMA = DASHBOARD / "src" / "api" / "schema.ts"


def write_types(address: str, target: Path) -> None:
    """Write the types of the server at `address` to `target`."""
    command = ["npm", "run", "--silent", "types", "--", f"{address}openapi.json", "-o", str(target)]
    subprocess.run(command, cwd=DASHBOARD, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    with running_demo(nodes=1, days=0) as demo:
        write_types(demo.address, SCHEMA)
    print(f"wrote {SCHEMA}", file=sys.stderr)
