"""Kill the controller with SIGKILL after each of its actions, and see by the audit log that it repeats no action.

A node with a faulty GPU goes all the way: taint, drain of a gang, reset, two tests, return. Whenever the audit log shows
that the controller has done something, the process is killed and another one takes over.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from tests.charts.rendering import objects, one
from tests.shim.nvml import NvmlShim, build_shim, switched

from e2e.cluster import Cluster
from e2e.cluster.errors import RequestFailed
from e2e.cluster.identity import Identity
from e2e.fakenodes import FakeNodes
from e2e.system import Observations
from e2e.test_repair import POLICY, identities, process

__all__ = ["identities"]
NODES = ("kill-a", "kill-b")
WRITES = ("create", "update", "patch", "delete")
_LEASE = "gpufleet-repair"


class MortalController:
    """A controller that is killed within milliseconds of its writes, and replaced.

    It is killed after every action and, because every start takes a while, after every third write of its own status.
    """

    def __init__(self, cluster: Cluster, namespace: str, command: list[str]) -> None:
        self.killed_after: list[str] = []
        self._cluster = cluster
        self._lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{_LEASE}"
        self._command = [sys.executable, "-m", "gpufleet", *command]
        self._statuses = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "MortalController":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        read_to = self._cluster.audit_size()
        running = self._start()
        while not self._stop.wait(0.005):
            lines, read_to = self._cluster.audit_lines(read_to)
            found = [each for each in map(write_in, lines) if each is not None and each.code < 300]
            if not any(self._is_deadly(each) for each in found):
                continue
            running.kill()
            running.wait()
            self.killed_after.append(", ".join(f"{each.verb} {each.resource}" for each in found))
            with suppress(RequestFailed):
                self._cluster.api.delete(self._lease)  # or the next one waits until it expires
            running = self._start()
        running.kill()
        running.wait()

    def _is_deadly(self, write: "Write") -> bool:
        if write.resource != "gpurepairs/status":
            return True
        self._statuses += 1
        return self._statuses % 3 == 1

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Write(NamedTuple):
    """A write of the controller; code 504 if it was killed before the answer, whether it was done or not."""

    verb: str
    resource: str
    name: str
    code: int


def write_in(line: bytes) -> Write | None:
    """Return the write in a line of the audit log; None for other requests, and for elections, events and conditions."""
    if b'"e2e-repair"' not in line:
        return None
    entry = json.loads(line)
    target = entry.get("objectRef", {})
    resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
    if entry["verb"] not in WRITES or resource in ("leases", "events", "nodes/status"):
        return None
    return Write(entry["verb"], resource, target.get("name", ""), entry["responseStatus"]["code"])


@contextmanager
def agents(
    cluster: Cluster, namespace: str, identity: Identity, folder: Path
) -> Iterator[dict[str, NvmlShim]]:
    """Run an agent on each node."""
    with ExitStack() as stack:
        shims = {}
        for node in NODES:
            (folder / node).mkdir()
            shims[node] = NvmlShim(build_shim(), folder / node)
            shims[node].describe(switched(8))
            flags = ["--node", node, "--set", "devices.kernel_log=false", "--port", "0"]
            flags += ["--lease-namespace", namespace, "--kubeconfig", str(identity.kubeconfig)]
            stack.enter_context(process("agent", *flags, env=shims[node].environment()))
        yield shims


def write_templates(folder: Path) -> None:
    """Write the chart's Job templates, without service accounts."""
    folder.mkdir()
    jobs = one(objects("gpu-scheduler", POLICY), "ConfigMap", "gpu-scheduler-repair-jobs")["data"]
    for name, text in jobs.items():
        job = yaml.safe_load(text)
        job["spec"]["template"]["spec"].pop("serviceAccountName")
        (folder / name).write_text(yaml.safe_dump(job))


class Work:
    """What users and kubelets do meanwhile."""

    def __init__(self, cluster: Cluster, namespace: str, fake_nodes: FakeNodes, shim: NvmlShim) -> None:
        self._cluster, self._namespace, self._nodes, self._shim = cluster, namespace, fake_nodes, shim
        self._finished: set[str] = set()

    def pod(self, name: str, node: str, gpu: int, group: str = "") -> None:
        meta: dict[str, Any] = {"name": name, "annotations": {"gpu.scheduling/allocated": f"{node}:{gpu}"}}
        if group:
            meta["labels"] = {"scheduling.x-k8s.io/pod-group": group}
        spec: dict[str, Any] = {"nodeName": node, "containers": [{"name": "main", "image": "train"}]}
        spec["terminationGracePeriodSeconds"] = 1
        body = {"metadata": meta, "spec": spec}
        self._cluster.api.create(f"/api/v1/namespaces/{self._namespace}/pods", body)

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self._cluster.api.get(f"/api/v1/namespaces/{self._namespace}/pods")["items"]
        return {each["metadata"]["name"]: each for each in found}

    def status(self) -> dict[str, Any]:
        found = self._cluster.api.get("/apis/gpu.scheduling/v1/gpurepairs")["items"]
        return next((each.get("status", {}) for each in found if each["metadata"]["name"] == NODES[0]), {})

    def is_served(self) -> bool:
        try:
            return self.status() == {}
        except RequestFailed:  # the API server has not opened the new kind yet
            return False

    def held(self) -> set[str]:
        found = self._cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
        return {
            f"{each['metadata']['name']}:{device['id']}"
            for each in found
            for device in each.get("status", {}).get("devices", ())
            if device.get("inUseBy")
        }

    def finish_jobs(self) -> None:
        """End the pods of Jobs; the reset starts the energy counter of the GPU again."""
        for name, pod in self.pods().items():
            if not name.startswith("gpufleet-") or name in self._finished:
                continue
            if pod.get("status", {}).get("phase") == "Running":
                self._nodes.finish(self._namespace, name)
                self._finished.add(name)
                if "reset" in name:
                    self._shim.set("0.field.83", 10)


def test_a_controller_that_is_killed_after_every_write_repeats_no_action(
    cluster: Cluster,
    identities: dict[str, Identity],
    namespace: str,
    fake_nodes: FakeNodes,
    tmp_path: Path,
    observations: Observations,
) -> None:
    fake_nodes.add(*NODES)
    write_templates(tmp_path / "templates")
    command = ["repair", "--port", "0", "--policy", "repair", "--set", "repair.settle=1s"]
    command += ["--set", f"repair.templates={tmp_path / 'templates'}", "--lease-namespace", namespace]
    command += ["--kubeconfig", str(identities["repair"].kubeconfig)]
    with agents(cluster, namespace, identities["agent"], tmp_path) as shims:
        shim = shims[NODES[0]]
        work = Work(cluster, namespace, fake_nodes, shim)
        cluster.wait_for("the kind GpuRepair", work.is_served)
        work.pod("train-0", NODES[0], 0, "train")
        work.pod("train-1", NODES[1], 0, "train")
        work.pod("other", NODES[0], 3)
        cluster.wait_for("the agents to report the pods", lambda: len(work.held()) == 3)
        since, began = cluster.audit_size(), time.monotonic()

        def returned() -> bool:
            work.finish_jobs()
            node = cluster.api.get(f"/api/v1/nodes/{NODES[0]}")
            tainted = any(each["key"].startswith("gpu.") for each in node["spec"].get("taints", ()))
            return bool(work.status().get("history")) and not tainted

        with MortalController(cluster, namespace, command) as controller:
            shim.xid(0, 48)
            cluster.wait_for("the return of the node", returned, timeout=400)
    observations.add("time", f"{time.monotonic() - began:.0f} s")
    for each in controller.killed_after:
        observations.add("killed after", each)
    found = [each for each in map(write_in, cluster.audit_lines(since)[0]) if each is not None]
    actions = [each for each in found if each.resource != "gpurepairs/status"]
    done = Counter((each.resource, each.name) for each in actions if each.code < 300)
    unanswered = Counter((each.resource, each.name) for each in actions if each.code == 504)
    jobs = sorted(each.name for each in actions if each.resource == "jobs" and each.code in (201, 504))
    assert [name.split("-")[1] for name in dict.fromkeys(jobs)] == ["prove", "prove", "reset"]
    expected = {
        ("gpurepairs", NODES[0]): 1,
        ("nodes", NODES[0]): 2,  # the taint is set once and removed once
        ("pods/eviction", "train-0"): 1,
        ("pods/eviction", "train-1"): 1,
        ("gpunodestatuses", NODES[0]): 2,  # the driver is released and taken back once
        **{("jobs", name): 1 for name in jobs},
    }
    assert (done | unanswered).keys() == expected.keys()
    for action, times in expected.items():
        assert done[action] <= times <= done[action] + unanswered[action], action
    assert "other" in work.pods(), "an unaffected pod was evicted"
    (episode,) = work.status()["history"]
    steps = [step.split(" ", 1)[1].partition(":")[0] for step in episode["steps"]]
    assert steps == [
        "Cordoned",
        "Draining",
        "Drained",
        "Repairing",
        "reset done",
        "Proving",
        "test 1 passed",
        "Proving",
        "test 2 passed",
        "all tests passed",
    ]
    for write in ("patch nodes", "create pods/eviction", "create jobs", "patch gpunodestatuses"):
        assert any(write in each for each in controller.killed_after), f"not killed after {write}"
