"""Run claims, device-plugin pods, ResourceClaims and Jobs of Kueue at the same time on a real control plane.

make e2e-mixed
make e2e-mixed ARGS="--seconds 60 --seed 7"

The run passes if gpufleet gave no GPU twice, no device has two owners, and the server accounts for every GPU. Prints
the results and writes them to `.gpufleet/e2e-mixed.json`.
"""

import argparse
import json
import secrets
import shutil
import sys
from pathlib import Path

from e2e.cluster import Cluster, Unavailable, binaries
from e2e.fakenodes import FakeNodes
from e2e.kueue import programs
from e2e.mixed.run import run

RESULT = Path(".gpufleet") / "e2e-mixed.json"
KEPT_LOGS = Path(".gpufleet") / "e2e-mixed-logs"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.mixed", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="seed of the load; random by default")
    parser.add_argument("--seconds", type=float, default=600.0, help="duration (default %(default)s)")
    arguments = parser.parse_args()
    seed = secrets.randbelow(10_000) if arguments.seed is None else arguments.seed
    try:
        control_plane, kueue = binaries.find(_print_step), programs.find(_print_step)
    except Unavailable as reason:
        print(f"no control plane: {reason}", file=sys.stderr)
        return 1
    with Cluster(control_plane) as cluster, FakeNodes(cluster.admin) as nodes:
        try:
            lines = run(cluster, nodes, kueue, arguments.seconds, seed, _print_step)
        finally:
            shutil.rmtree(KEPT_LOGS, ignore_errors=True)
            shutil.copytree(cluster.logs, KEPT_LOGS)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(lines, indent=2))
    return 0 if all(line.get("ok", True) for line in lines) else 1


def _print_step(line: str) -> None:
    print(f"==> {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
