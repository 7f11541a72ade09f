"""Generate the dashboard's TypeScript types and the Python client from the OpenAPI document of a running demo.

python -m dashboard.tools.api_types     # writes dashboard/src/api/schema.ts and src/gpufleet/client
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from dashboard.tools.demo_process import running_demo
from dashboard.tools.python_client import client_modules

DASHBOARD = Path(__file__).parents[1]
SCHEMA = DASHBOARD / "src" / "api" / "schema.ts"
CLIENT = DASHBOARD.parent / "src" / "gpufleet" / "client"


def write_types(address: str, target: Path) -> None:
    """Write the types of the server at `address` to `target`."""
    command = ["npm", "run", "--silent", "types", "--", f"{address}openapi.json", "-o", str(target)]
    subprocess.run(command, cwd=DASHBOARD, check=True, capture_output=True, timeout=120)


def write_client(address: str, folder: Path) -> None:
    """Write the types and calls of the Python client for the server at `address` into `folder`."""
    with urllib.request.urlopen(f"{address}openapi.json", timeout=30) as response:
        modules = client_modules(json.load(response))
    for name, text in modules.items():
        (folder / name).write_text(formatted(text), encoding="utf-8")


def formatted(code: str) -> str:
    """Return Python code as the project formats it."""
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix", "--quiet"], ["format"]):
        words = [str(ruff), *command, "--stdin-filename", str(CLIENT / "generated.py"), "-"]
        code = subprocess.run(words, input=code, text=True, capture_output=True, check=True).stdout
    return code


if __name__ == "__main__":
    with running_demo(nodes=1, days=0) as demo:
        write_client(demo.address, CLIENT)
        write_types(demo.address, SCHEMA)
    print(f"wrote {SCHEMA} and {CLIENT}", file=sys.stderr)
