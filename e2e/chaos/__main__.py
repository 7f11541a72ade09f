"""Kill, pause and disconnect every component under load for CHAOS_SECONDS (600), then repair all faults.

make chaos
CHAOS_SECONDS=90 make chaos ARGS="--seed 7"
make chaos ARGS="--delivery dra"
make chaos ARGS="--queues"

The run passes if no GPU was ever held twice (by the API server's audit log), no lease is left over, no hour is missing
or wrong, all views count the same GPUs, no acknowledged write is lost, and everything is ready within a minute. Prints the faults and results and
writes them to `.gpufleet/chaos.json`.
"""

import argparse
import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.shim.nvml import switched

from e2e.chaos.checks import Checks
from e2e.chaos.faults import Chaos, Proxies
from e2e.chaos.load import Load
from e2e.chaos.queues import Owners
from e2e.cluster import Cluster, Unavailable, binaries
from e2e.fakenodes import FakeNodes
from e2e.node import resource_claims
from e2e.system import System, Users

RESULT = Path(".gpufleet") / "chaos.json"
KEPT_LOGS = Path(".gpufleet") / "chaos-logs"
NODES = ("node-a", "node-b")
VALUES = {"scheduler": {"replicas": 2}, "webhook": {"replicas": 2}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="seed of the faults; random by default")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("CHAOS_SECONDS", "600")),
        help="duration (default %(default)s)",
    )
    parser.add_argument(
        "--delivery",
        choices=("extender", "dra"),
        default="extender",
        help="how pods get their GPUs (default %(default)s)",
    )
    parser.add_argument(
        "--queues", action="store_true", help="with GpuQueues: a guarantee is lent and reclaimed all the time"
    )
    arguments = parser.parse_args()
    seed = secrets.randbelow(10_000) if arguments.seed is None else arguments.seed
    try:
        programs = binaries.find(_print_step)
    except Unavailable as reason:
        print(f"no control plane: {reason}", file=sys.stderr)
        return 1
    with Cluster(programs) as cluster, FakeNodes(cluster.admin) as nodes:
        try:
            lines = run(cluster, nodes, arguments.seconds, seed, arguments.delivery, queues=arguments.queues)
        finally:
            shutil.rmtree(KEPT_LOGS, ignore_errors=True)
            shutil.copytree(cluster.logs, KEPT_LOGS)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(lines, indent=2))
    passed = all(line.get("ok", True) for line in lines)
    if not passed:
        print(f"logs: {KEPT_LOGS}; repeat with --seed {seed}", flush=True)
    return 0 if passed else 1


def run(
    cluster: Cluster, nodes: FakeNodes, seconds: float, seed: int, delivery: str, *, queues: bool = False
) -> list[dict[str, object]]:
    """Do one run and return a line for each fault and check; lines are printed immediately."""
    _print_step(f"{seconds:g} s of chaos in mode {delivery}, seed {seed}")
    names = nodes.add(*NODES, "node-cpu")
    values = {**VALUES, "delivery": delivery}
    system = System(cluster, nodes, {name: switched(8) for name in NODES}, scheduler_values=values)
    proxies = Proxies(int(urlsplit(cluster.url).port or 443))
    system.processes.identity_of = proxies.identity_of
    try:
        with system:
            cluster.create_namespace("users")
            if delivery == "dra":
                resource_claims.publish_reported(cluster, *NODES, multiple=True)
            users = Users(cluster, nodes, "users")
            load, chaos = Load(system, users, seed), Chaos(system, proxies, seed)
            owners = Owners(cluster, nodes, "users", seed) if queues else None
            checks = Checks(system, users, load, chaos, cluster.audit_size(), owners)
            load.prepare()
            load.start()
            if owners is not None:
                owners.start()
            _print_step("everything is running; starting faults")
            chaos.start()
            time.sleep(seconds)
            chaos.stop()
            _print_step("all faults are repaired")
            return checks.all()
    finally:
        proxies.close()
        nodes.remove(*names)


def _print_step(line: str) -> None:
    print(f"==> {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
