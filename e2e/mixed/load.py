"""Users who want GPUs in four ways at the same time, and a sampler that looks for devices with two owners.

| kind | allocated by | on |
| --- | --- | --- |
| pods with a GpuClaim | gpufleet | nodes of claims, shared nodes |
| Jobs of Kueue with a GpuClaim | gpufleet, after Kueue | the same |
| pods that request `nvidia.com/gpu` | kube-scheduler | shared nodes |
| pods with a ResourceClaimTemplate | kube-scheduler | nodes of ResourceClaims |
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from random import Random
from threading import Event, Thread
from typing import Any

from e2e.chaos.load import FAILURES
from e2e.cluster import RequestFailed
from e2e.kueue import Kueue, manager
from e2e.node import resource_claims
from e2e.system import System, Users
from e2e.system.users import pod

QUEUE = "team"
QUOTA = 6
PLUGIN = "nvidia.com/gpu"
EXTENDED = "gpu.scheduling/gpu"
TAINT = {"key": "resource-claims", "effect": "NoSchedule"}
"""On the nodes whose GPUs belong to ResourceClaims."""
DEVICE_CLASS = "e2e-gpus"
CLAIMS = {"one": 1, "two": 2}
MOST = {"claim": 12, "plugin": 5, "resource": 5}
"""Existing pods of each kind."""
Json = dict[str, Any]


class Load:
    """Creates and deletes pods and Jobs in threads until `stop`."""

    def __init__(self, system: System, users: Users, kueue: Kueue, seed: int) -> None:
        self.system, self.users, self.kueue = system, users, kueue
        self.created: Counter[str] = Counter()
        self.faults: set[str] = set()
        """Devices that a sample found with two owners."""
        self.samples = 0
        self._random = Random(seed)
        self._stop = Event()
        self._live: dict[str, list[str]] = {kind: [] for kind in MOST}
        actions: tuple[tuple[Callable[[], None], float], ...] = (
            (self._claim_pod, 0.3),
            (self._plugin_pod, 0.8),
            (self._resource_claim_pod, 0.8),
            (self._kueue_job, 2.0),
            (self._sample, 0.5),
        )
        self._threads = [
            Thread(target=self._repeat, args=each, name=each[0].__name__, daemon=True) for each in actions
        ]

    def prepare(self, resource_nodes: list[str]) -> None:
        """Create claims, queue, DeviceClass and template, and publish the devices of the ResourceClaims' nodes."""
        api = self.system.cluster.api
        for name, count in CLAIMS.items():
            self.users.claim(name, count)
        self.kueue.quota(QUEUE, {EXTENDED: QUOTA})
        self.kueue.queue(self.users.namespace, QUEUE)
        selector = {"cel": {"expression": f'device.driver == "{resource_claims.DRIVER}"'}}
        class_body = {**resource_claims.device_class(DEVICE_CLASS), "spec": {"selectors": [selector]}}
        api.create(f"{resource_claims.API}/deviceclasses", class_body)
        template = resource_claims.template("one", DEVICE_CLASS, 1)
        api.create(
            f"{resource_claims.API}/namespaces/{self.users.namespace}/resourceclaimtemplates", template
        )
        resource_claims.publish_reported(self.system.cluster, *resource_nodes)

    def clean_up(self, resource_nodes: list[str]) -> None:
        """Delete what `prepare` created outside of the namespace."""
        resource_claims.unpublish(self.system.cluster, *resource_nodes)
        self.system.cluster.api.delete(f"{resource_claims.API}/deviceclasses/{DEVICE_CLASS}")

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all threads and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} did not stop within 60 s"

    def _repeat(self, action: Callable[[], None], pause: float) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(*FAILURES):
                action()
            self._stop.wait(pause)

    def _claim_pod(self) -> None:
        self._create_or_delete("claim", lambda name: pod(name, self._random.choice(sorted(CLAIMS))))

    def _plugin_pod(self) -> None:
        limits = {"limits": {PLUGIN: "1"}}
        self._create_or_delete("plugin", lambda name: _plain(name, resources=limits))

    def _resource_claim_pod(self) -> None:
        self._create_or_delete(
            "resource",
            lambda name: _plain(
                name,
                resources={"claims": [{"name": "gpus"}]},
                tolerations=[{**TAINT, "operator": "Exists"}],
                resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "one"}],
            ),
        )

    def _create_or_delete(self, kind: str, manifest: Callable[[str], Json]) -> None:
        live = self._live[kind]
        if len(live) < MOST[kind] and self._random.random() < 0.7:
            name = f"{kind}-{self.created[kind]}"
            body = manifest(name)
            if self._random.random() < 0.3:
                body["metadata"].setdefault("annotations", {})["e2e.gpufleet/runs-for"] = "3"
            self.system.cluster.api.create(f"/api/v1/namespaces/{self.users.namespace}/pods", body)
            live.append(name)
            self.created[kind] += 1
        elif live:
            name = live.pop(self._random.randrange(len(live)))
            try:
                self.users.delete(name)
            except RequestFailed as error:
                if error.status != 404:
                    raise

    def _kueue_job(self) -> None:
        name = f"job-{self.created['job']}"
        template = pod("", "one")
        del template["metadata"]["name"]
        template["metadata"]["annotations"]["e2e.gpufleet/runs-for"] = "5"
        template["spec"]["containers"][0]["resources"] = {"limits": {EXTENDED: "1"}}
        body = {
            "metadata": {"name": name, "labels": {manager.QUEUE_NAME: QUEUE}},
            "spec": {"template": {key: template[key] for key in ("metadata", "spec")}},
        }
        self.system.cluster.api.create(f"/apis/batch/v1/namespaces/{self.users.namespace}/jobs", body)
        self.created["job"] += 1

    def _sample(self) -> None:
        """Compare all allocations of ResourceClaims with each other and with the leases."""
        leases = set(self.system.leases())
        seen: set[tuple[str, str]] = set()
        for claim in self.system.cluster.api.get(f"{resource_claims.API}/resourceclaims")["items"]:
            allocation = claim.get("status", {}).get("allocation", {})
            for each in allocation.get("devices", {}).get("results", ()):
                device = (each["pool"], each["device"])
                if device in seen:
                    self.faults.add(f"{each['pool']}:{each['device']} is in two ResourceClaims")
                seen.add(device)
                if f"gpu-{each['pool']}-{each['device'].removeprefix('gpu-')}" in leases:
                    self.faults.add(f"{each['pool']}:{each['device']} is in a ResourceClaim and a lease")
        self.samples += 1


def _plain(name: str, resources: Json, **spec: Any) -> Json:
    """Return a pod without a claim, for the cluster's own scheduler."""
    containers = [{"name": "main", "image": "trainer", "resources": resources}]
    rest = {"containers": containers, "terminationGracePeriodSeconds": 0, "restartPolicy": "Never", **spec}
    return {"metadata": {"name": name}, "spec": rest}
