"""Inject each kind of fault on a node of its own, and see by the audit log that no pod comes and only affected pods leave.

Every node has an agent with default settings. Users create ten pods a second without a claim that must run on the node
of the next fault. By the audit log of the API server, none may be bound to it later than two seconds after the fault.
NVML is the shim, AMD SMI a fake library, the
kernel log a FIFO, sysfs and /proc are folders. test_repair_kills.py kills the controller; here an agent is killed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.shim.nvml import NvmlShim, build_shim, bus, switched

from e2e.cluster import Cluster
from e2e.cluster.errors import RequestFailed
from e2e.cluster.identity import Identity
from e2e.fakenodes import FakeNodes
from e2e.system import Observations
from e2e.test_repair import PlainPods, bindings, identities, process

__all__ = ["identities"]
HEALTHY = "fault-free"
LIMIT = 2.0
"""Seconds after a fault in which kube-scheduler may still bind a pod to the node."""
ORPHANS_AFTER = 1.0
"""Seconds after which processes of a deleted pod are a fault (agent_on_fake_files.py)."""
TAINT = "gpu.scheduling/unhealthy"
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
PORTS = tuple(f"mlx5_{number}" for number in range(8))


class Machine:
    """The hardware of one node."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        os.mkfifo(self.folder / "kmsg")
        # Held open for writing, or the agent would see its end.
        self._kernel_log = os.open(self.folder / "kmsg", os.O_RDWR)
        for port in PORTS:
            self.port(port, "4: ACTIVE")
        self.shim = NvmlShim(build_shim(), self.folder)
        self.shim.describe(switched(4))
        self.delete_pod: Callable[[], None] = lambda: None
        """Deletes by force the pod whose processes `leave_process` keeps."""

    def port(self, device: str, state: str) -> None:
        path = self.folder / "infiniband" / device / "ports" / "1" / "state"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{state}\n")

    def kernel(self, text: str) -> None:
        micros = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        os.write(self._kernel_log, f"3,1,{micros},-;{text}\n".encode())

    def leave_process(self, pod: str, pid: int = 4711) -> None:
        """Run a process of the pod with this uid on GPU 0, which does not end with its pod."""
        cgroup = self.folder / "proc" / str(pid) / "cgroup"
        cgroup.parent.mkdir(parents=True)
        cgroup.write_text(f"0::/kubepods/pod{pod}/main\n")
        self.shim.run(0, pid, 1 << 30)

    def amd(self, **state: int) -> None:
        """Have four GPUs of AMD with these counters on the first, instead of NVIDIA's."""
        fresh = self.folder / "amd.new"
        fresh.write_text(json.dumps(state))
        fresh.replace(self.folder / "amd.json")

    def close(self) -> None:
        os.close(self._kernel_log)


@dataclass(frozen=True)
class FaultCase:
    """How a fault is injected, and what it does to the node."""

    name: str
    inject: Callable[[Machine], None]
    signal: str
    tainted: bool = True
    all_pods_leave: bool = False
    after: float = 0.0
    """Seconds after which the rule counts it as a fault."""
    prepare: Callable[[Machine], None] = lambda machine: None


def degrade(machine: Machine) -> None:
    """Take one rail of eight and half of the PCIe lanes: the node stays in use."""
    machine.port(PORTS[3], "1: DOWN")
    machine.shim.set("0.pcie_width", 8)


def cut_off(machine: Machine) -> None:
    for port in PORTS:
        machine.port(port, "1: DOWN")


FAULTS = (
    FaultCase("nvlink", lambda m: m.shim.set("0.link.3", "6 down"), "nvlink-down"),
    FaultCase("ecc", lambda m: m.kernel(f"NVRM: Xid (PCI:{bus(0)[4:-2]}): 48, DBE"), "xid-48"),
    FaultCase("remap", lambda m: m.shim.set("0.field.145", 1), "remap-failed"),
    FaultCase("pending", lambda m: m.shim.set("0.field.144", 1), "remap-pending"),
    FaultCase("action", lambda m: m.shim.set("0.field.230", 1), "recovery-action"),
    FaultCase("fabric", lambda m: m.shim.set("0.fabric", "1 0 0"), "fabric"),
    FaultCase("lost", lambda m: m.shim.lose(0), "fault"),
    FaultCase("xid", lambda m: m.shim.xid(0, 48), "xid-48"),
    FaultCase("switch", lambda m: m.kernel(SXID), "sxid", all_pods_leave=True),
    FaultCase(
        "driver",
        lambda m: m.shim.fail("nvmlDeviceGetCount_v2", 18),
        "driver-mismatch",
        all_pods_leave=True,
    ),
    FaultCase("amd-ecc", lambda m: m.amd(uncorrectable=1), "ecc", prepare=lambda m: m.amd()),
    FaultCase("amd-pages", lambda m: m.amd(pending=1), "bad-pages-pending", prepare=lambda m: m.amd()),
    FaultCase("orphan", lambda m: m.delete_pod(), "orphan-processes", after=ORPHANS_AFTER),
    FaultCase("rails", cut_off, "rails", all_pods_leave=True),
    FaultCase("degraded", degrade, "pcie-width", tainted=False),
)


def node_of(case: FaultCase) -> str:
    return f"fault-{case.name}"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    made = {name: Machine(name, tmp_path) for name in (HEALTHY, *(node_of(case) for case in FAULTS))}
    yield made
    for machine in made.values():
        machine.close()


def start_agent(machine: Machine, namespace: str, identity: Identity) -> "subprocess.Popen[bytes]":
    flags = ["--node", machine.name, "--port", "0"]
    if (machine.folder / "amd.json").exists():
        flags += ["--set", "devices.reader=amdsmi"]
    flags += ["--lease-namespace", namespace, "--kubeconfig", str(identity.kubeconfig)]
    with (machine.folder / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "e2e.agent_on_fake_files", str(machine.folder), "agent", *flags],
            env={**os.environ, **machine.shim.environment()},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def stop_all(agents: "dict[str, subprocess.Popen[bytes]]") -> None:
    for each in agents.values():
        each.kill()
        each.wait()


class View:
    """What the API server shows."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api, self._namespace = cluster.api, namespace

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self._api.get(f"/api/v1/namespaces/{self._namespace}/pods")["items"]
        return {each["metadata"]["name"]: each for each in found}

    def tainted(self) -> set[str]:
        return {
            node["metadata"]["name"]
            for node in self._api.get("/api/v1/nodes")["items"]
            if any(taint["key"] == TAINT for taint in node["spec"].get("taints", ()))
        }

    def reports(self) -> dict[str, dict[str, Any]]:
        found = self._api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
        return {each["metadata"]["name"]: each.get("status", {}) for each in found}

    def is_tainted(self, node: str) -> bool:
        return node in self.tainted()

    def has_signal(self, node: str, signal: str) -> bool:
        return signal in {each["signal"] for each in self.reports().get(node, {}).get("findings", ())}

    def has_plain_pods(self, node: str) -> bool:
        return any(
            "plain" in pod["metadata"].get("labels", {}) and pod["spec"].get("nodeName") == node
            for pod in self.pods().values()
        )

    def history(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self._api.get(f"/apis/gpu.scheduling/v1/gpurepairs/{node}")
        return found


def test_no_pod_comes_to_a_faulty_node_and_only_affected_pods_leave(
    cluster: Cluster,
    identities: dict[str, Identity],
    namespace: str,
    fake_nodes: FakeNodes,
    machines: dict[str, Machine],
    observations: Observations,
) -> None:
    fake_nodes.add(*machines)
    view = View(cluster, namespace)

    def pod(name: str, node: str, gpu: int, group: str = "") -> str:
        meta: dict[str, Any] = {"name": name, "annotations": {"gpu.scheduling/allocated": f"{node}:{gpu}"}}
        if group:
            meta["labels"] = {"scheduling.x-k8s.io/pod-group": group}
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "train"}]}
        spec["terminationGracePeriodSeconds"] = 1  # type: ignore[assignment]
        made = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})
        return str(made["metadata"]["uid"])

    orphan = machines["fault-orphan"]
    orphan.leave_process(pod("forced", orphan.name, 0))
    orphan.delete_pod = lambda: cluster.api.delete(
        f"/api/v1/namespaces/{namespace}/pods/forced", {"gracePeriodSeconds": 0}
    )
    for number, case in enumerate(FAULTS):
        case.prepare(machines[node_of(case)])
        pod(f"{case.name}-gang-0", node_of(case), 0, case.name)
        pod(f"{case.name}-gang-1", HEALTHY, number % 4, case.name)
        pod(f"{case.name}-other", node_of(case), 3)
    repair = ["repair", "--port", "0", "--policy", "drain", "--set", "repair.settle=1s"]
    repair += ["--set", "repair.max_share=100", "--set", "repair.max_per_hour=100"]
    repair += ["--lease-namespace", namespace, "--kubeconfig", str(identities["repair"].kubeconfig)]
    with ExitStack() as stack:
        stack.enter_context(process(*repair))
        agents = {
            name: start_agent(machine, namespace, identities["agent"]) for name, machine in machines.items()
        }
        stack.callback(stop_all, agents)
        expected = {node_of(case): {"0", "3"} for case in FAULTS}

        def ready() -> bool:
            try:
                reports = view.reports()
            except RequestFailed:  # the API server has not opened the new kind yet
                return False
            used = {
                name: {str(each["id"]) for each in status.get("devices", ()) if each.get("inUseBy")}
                for name, status in reports.items()
            }
            ports = [status.get("networkPorts", ()) for status in reports.values()]
            return all(used.get(name) == gpus for name, gpus in expected.items()) and all(
                len(each) == len(PORTS) for each in ports
            )

        cluster.wait_for("the agents to report pods and ports", ready, timeout=180)
        since, injected = cluster.audit_size(), {}
        seen: dict[str, float] = {}
        out = {node_of(case) for case in FAULTS if case.tainted}
        with PlainPods(cluster, namespace) as users:
            for case in FAULTS:
                name = users.node = node_of(case)
                cluster.wait_for(f"pods on {name}", partial(view.has_plain_pods, name))
                injected[name] = time.time() + case.after
                case.inject(machines[name])
                if case.tainted:
                    cluster.wait_for(f"the taint of {name}", partial(view.is_tainted, name))
                    seen[name] = time.time()
                time.sleep(max(0.0, injected[name] + LIMIT + 1 - time.time()))  # pods go on coming
            leaving = {f"{case.name}-gang-{n}" for case in FAULTS if case.tainted for n in (0, 1)}
            leaving |= {f"{case.name}-other" for case in FAULTS if case.all_pods_leave}
            cluster.wait_for("the affected pods to leave", lambda: not leaving & view.pods().keys())
            agents["fault-ecc"].kill()  # the next one must remember the XID
            agents["fault-ecc"].wait()
            agents["fault-ecc"] = start_agent(machines["fault-ecc"], namespace, identities["agent"])
        assert view.tainted() == out
        for case in FAULTS:
            cluster.wait_for(case.signal, partial(view.has_signal, node_of(case), case.signal))
        placed = {
            f"{namespace}/{name}": each["spec"]["nodeName"]
            for name, each in view.pods().items()
            if "plain" in each["metadata"].get("labels", {}) and each["spec"].get("nodeName") in out
        }
        bound = {name: at for at, name in bindings(cluster, since) if name in placed}
        late = {
            f"{name} on {placed[name]}": f"{at - injected[placed[name]]:.2f} s after the fault"
            for name, at in bound.items()
            if at > injected[placed[name]] + LIMIT
        }
        for name in sorted(out):
            last = max((bound[pod] for pod, node in placed.items() if node == name), default=injected[name])
            observations.add(
                name,
                f"tainted {seen[name] - injected[name]:.2f} s after the fault, last pod bound {last - injected[name]:.2f} s",
            )
        assert late == {}
        kept = {f"{case.name}-other" for case in FAULTS if not case.all_pods_leave}
        kept |= {f"{case.name}-gang-{n}" for case in FAULTS if not case.tainted for n in (0, 1)}
        assert kept <= view.pods().keys(), "an unaffected pod was evicted"
        evictions = [
            entry["objectRef"]["name"]
            for entry in cluster.audit(since)
            if entry.get("objectRef", {}).get("subresource") == "eviction"
            and entry["responseStatus"]["code"] == 201
        ]
        assert sorted(evictions) == sorted(leaving), "a pod was evicted twice, or one that was not affected"
        for case in FAULTS:
            if case.tainted:
                assert view.history(node_of(case))["status"]["cause"] == case.signal
        assert view.tainted() == out, "the agent that was restarted forgot its fault"
