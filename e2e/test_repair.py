"""Test the repair of a node on a real API server, with the agent's shim and exactly the rights of the chart."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import objects, one
from tests.shim.nvml import NvmlShim, build_shim, switched

from e2e.cluster import Cluster
from e2e.cluster.identity import Identity
from e2e.fakenodes import FakeNodes
from e2e.system import Observations
from e2e.system.release import CRDS, delete_crds

NODES = ("repair-a", "repair-b")
POLICY = {"repair": {"policy": "repair"}}
GROUP = "rbac.authorization.k8s.io"


def rights(component: str) -> str:
    """Return the chart's rights of a component for a group of users, in every namespace."""
    rendered = objects("gpu-scheduler", POLICY)
    name = f"gpu-scheduler-{component}"
    rules = [rule for kind in ("ClusterRole", "Role") for rule in one(rendered, kind, name)["rules"]]
    meta = {"name": f"e2e-repair-{component}"}
    role = {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules}
    binding = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": meta["name"]},
        "subjects": [{"kind": "Group", "name": meta["name"], "apiGroup": GROUP}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]})


@pytest.fixture(scope="module")
def identities(cluster: Cluster) -> Iterator[dict[str, Identity]]:
    cluster.kubectl("apply", "-f", str(CRDS))
    for kind in ("gpunodestatuses", "gpurepairs", "gpuclaims"):
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{kind}.gpu.scheduling", "--timeout=30s")
    for component in ("agent", "repair"):
        cluster.kubectl("apply", "-f", "-", stdin=rights(component))
    yield {name: cluster.user(f"e2e-{name}", f"e2e-repair-{name}") for name in ("agent", "repair")}
    for component in ("agent", "repair"):
        cluster.kubectl("delete", "-f", "-", stdin=rights(component))
    delete_crds(cluster)


@contextmanager
def process(*command: str, env: dict[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a gpufleet command that serves."""
    running = subprocess.Popen(
        [sys.executable, "-m", "gpufleet", *command],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert running.stdout is not None
        assert b" serves on " in running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()


class PlainPods:
    """Users who create a pod without a claim every 100 ms."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.node = ""
        """The node on which the next pods must run; any if empty."""
        self._cluster, self._namespace = cluster, namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "PlainPods":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.1):
            requests = {"limits": {"cpu": "1m"}}
            spec: dict[str, Any] = {"containers": [{"name": "main", "image": "plain", "resources": requests}]}
            if self.node:
                field = {"key": "metadata.name", "operator": "In", "values": [self.node]}
                required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
                spec["affinity"] = {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
                }
            body = {"metadata": {"name": f"plain-{number}", "labels": {"plain": "yes"}}, "spec": spec}
            self._cluster.api.create(f"/api/v1/namespaces/{self._namespace}/pods", body)
            number += 1


def bindings(cluster: Cluster, since: int) -> list[tuple[float, str]]:
    """Return when pods were bound to the faulty node, and their names, by the audit log."""
    found = []
    for entry in cluster.audit(since):
        target = entry.get("objectRef", {})
        if target.get("resource") != "pods" or target.get("subresource") != "binding":
            continue
        if entry["verb"] == "create" and entry.get("responseStatus", {}).get("code") == 201:
            at = datetime.fromisoformat(entry["stageTimestamp"]).timestamp()
            found.append((at, f"{target['namespace']}/{target['name']}"))
    return found


def test_a_faulty_gpu_is_drained_repaired_tested_and_returned(
    cluster: Cluster,
    identities: dict[str, Identity],
    namespace: str,
    fake_nodes: FakeNodes,
    tmp_path: Path,
    observations: Observations,
) -> None:
    fake_nodes.add(*NODES)
    templates = tmp_path / "templates"
    templates.mkdir()
    jobs = one(objects("gpu-scheduler", POLICY), "ConfigMap", "gpu-scheduler-repair-jobs")["data"]
    for name, text in jobs.items():
        job = yaml.safe_load(text)
        job["spec"]["template"]["spec"].pop("serviceAccountName")
        (templates / name).write_text(yaml.safe_dump(job))
    shims = {}
    repair = ["repair", "--port", "0", "--policy", "repair", "--set", "repair.settle=1s"]
    repair += ["--set", f"repair.templates={templates}", "--lease-namespace", namespace]
    repair += ["--kubeconfig", str(identities["repair"].kubeconfig)]

    def pod(name: str, node: str, gpu: int, group: str = "") -> None:
        meta: dict[str, Any] = {"name": name, "annotations": {"gpu.scheduling/allocated": f"{node}:{gpu}"}}
        if group:
            meta["labels"] = {"scheduling.x-k8s.io/pod-group": group}
        spec: dict[str, Any] = {"nodeName": node, "containers": [{"name": "main", "image": "train"}]}
        spec["terminationGracePeriodSeconds"] = 1
        cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": meta, "spec": spec})

    def names() -> set[str]:
        return {
            each["metadata"]["name"]
            for each in cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        }

    def status() -> dict[str, Any]:
        found = cluster.api.get("/apis/gpu.scheduling/v1/gpurepairs")["items"]
        return next((each.get("status", {}) for each in found if each["metadata"]["name"] == "repair-a"), {})

    def taints() -> list[str]:
        node = cluster.api.get("/api/v1/nodes/repair-a")
        return [each["key"] for each in node["spec"].get("taints", ()) if each["key"].startswith("gpu.")]

    def finish(hook: str) -> str:
        def running() -> str:
            job = status().get("job", "")
            return next((name for name in names() if job and hook in job and name.startswith(job)), "")

        found = str(cluster.wait_for(f"the pod of {hook}", running))
        fake_nodes.finish(namespace, found)
        return found

    with ExitStack() as stack:
        for node in NODES:
            (tmp_path / node).mkdir()
            shims[node] = NvmlShim(build_shim(), tmp_path / node)
            shims[node].describe(switched(8))
            flags = [
                "--node",
                node,
                "--set",
                "agent.period=500ms",
                "--set",
                "devices.kernel_log=false",
                "--port",
                "0",
            ]
            flags += ["--lease-namespace", namespace, "--kubeconfig", str(identities["agent"].kubeconfig)]
            stack.enter_context(process("agent", *flags, env=shims[node].environment()))
        controller = stack.enter_context(process(*repair))
        pod("train-0", "repair-a", 0, "train")
        pod("train-1", "repair-b", 0, "train")
        pod("other", "repair-a", 3)

        def in_use() -> bool:
            found = cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
            by_name = {each["metadata"]["name"]: each.get("status", {}).get("devices", []) for each in found}
            devices = [by_name.get("repair-a", []), by_name.get("repair-b", [])]
            return all(devices) and bool(devices[0][3].get("inUseBy")) and bool(devices[1][0].get("inUseBy"))

        cluster.wait_for("the agents to report the pods", in_use)
        since = cluster.audit_size()
        with PlainPods(cluster, namespace):
            time.sleep(1)
            injected = time.time()
            shims["repair-a"].xid(0, 48)
            cluster.wait_for("the taint", taints)
            tainted = time.time()
            observations.add("from the XID to the taint", f"{tainted - injected:.2f} s")
            controller.kill()  # whatever it was doing, the next one continues
            controller.wait()
            stack.enter_context(process(*repair))
            observations.add("the next process serves", f"{time.time() - tainted:.1f} s after the taint")
            cluster.wait_for("the gang to leave", lambda: not names() & {"train-0", "train-1"})
            observations.add("the gang has left", f"{time.time() - tainted:.1f} s after the taint")
            time.sleep(max(0.0, tainted + 3 - time.time()))
        placed = {
            f"{namespace}/{each['metadata']['name']}"
            for each in cluster.api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector=plain")["items"]
            if each["spec"].get("nodeName") == "repair-a"
        }
        times = {name: at for at, name in bindings(cluster, since) if name in placed}
        last = max(times.values(), default=injected) - injected
        observations.add(
            "plain pods bound to the node", f"{len(placed)}, the last {last:.2f} s after the XID"
        )
        # kube-scheduler may have chosen the node before it saw the taint.
        assert [name for name, at in times.items() if at > tainted + 1] == []
        assert "other" in names(), "an unaffected pod was evicted"
        finish("reset")
        shims["repair-a"].set("0.field.83", 10)  # the energy counter starts again
        first = finish("prove")
        cluster.wait_for("the second test", lambda: status().get("passes") == 1)
        assert taints()
        second = finish("prove")
        assert first != second
        cluster.wait_for("the end of the taint", lambda: not taints())
        assert status()["phase"] == "Healthy"
        assert [episode["cause"] for episode in status()["history"]] == ["xid-48"]
        assert "other" in names()
        conditions = {
            each["type"]: each["status"]
            for each in cluster.api.get("/api/v1/nodes/repair-a")["status"]["conditions"]
        }
        assert (conditions["GpuHealthy"], conditions["Ready"]) == ("True", "True")
        for step in status()["history"][0]["steps"]:
            observations.add("step", step)
