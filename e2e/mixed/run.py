"""One run of the mixed load on an installed system."""

import time
from collections.abc import Callable

from tests.shim.nvml import switched

from e2e.cluster import Cluster
from e2e.cluster.rest import Rest
from e2e.fakenodes import FakeNodes
from e2e.kueue import Kueue
from e2e.kueue.programs import Programs
from e2e.mixed.checks import Line, run_checks
from e2e.mixed.load import PLUGIN, TAINT, Load
from e2e.system import System, Users

CLAIM_NODES = ["claims-0", "claims-1"]
SHARED_NODES = ["shared-0"]
RESOURCE_NODES = ["resources-0"]
GPUS = 8


def run(
    cluster: Cluster,
    nodes: FakeNodes,
    kueue: Programs,
    seconds: float,
    seed: int,
    step: Callable[[str], None] = print,
) -> list[Line]:
    """Install everything, run the load for so many seconds and return the checks."""
    names = nodes.add(*CLAIM_NODES, "node-cpu")
    names += nodes.add(*SHARED_NODES, capacity={PLUGIN: str(GPUS)})
    names += nodes.add(*RESOURCE_NODES, taints=[TAINT])
    gpu_nodes = [*CLAIM_NODES, *SHARED_NODES, *RESOURCE_NODES]
    try:
        machines = {name: switched(GPUS) for name in gpu_nodes}
        with System(cluster, nodes, machines) as system, Kueue(cluster, kueue) as running:
            return _with_kueue(system, running, seconds, seed, step)
    finally:
        nodes.remove(*names)


def _with_kueue(
    system: System, kueue: Kueue, seconds: float, seed: int, step: Callable[[str], None]
) -> list[Line]:
    cluster = system.cluster
    cluster.create_namespace("mixed")
    users = Users(cluster, system.nodes, "mixed")
    load = Load(system, users, kueue, seed)
    since = cluster.audit_size()
    load.prepare(RESOURCE_NODES)
    try:
        step(f"mixed load for {seconds:g} s, seed {seed}")
        load.start()
        time.sleep(seconds)
        load.stop()
        step("the load has stopped")
        gpus = dict.fromkeys((*CLAIM_NODES, *SHARED_NODES, *RESOURCE_NODES), GPUS)
        lines = run_checks(system, users, load, since, gpus)
        for line in lines:
            mark = "" if "ok" not in line else "ok   " if line["ok"] else "FAIL "
            step(f"{mark}{line['what']}: {line['observed']}")
        return lines
    finally:
        # In one request: kubectl would delete hundreds of Jobs one by one. Kueue's webhooks make it slow.
        jobs = "/apis/batch/v1/namespaces/mixed/jobs"
        Rest(cluster.admin, timeout=300).delete(jobs, {"propagationPolicy": "Background"})
        users.clean_up()
        load.clean_up(RESOURCE_NODES)
        cluster.api.delete("/api/v1/namespaces/mixed")
