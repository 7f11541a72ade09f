"""A cluster on the embedded API with one scheduler replica, and the actions of users and kubelets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from tests.waiting import wait_until

from gpufleet.kubernetes import LEASES, PODS, Connection, ElectionTimings, KubeClient, Selection
from gpufleet.kubernetes.client.resources import GPU_CLAIMS
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Lease, Pod
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.process import Replica
from gpufleet.scheduler.scheduler import Waits
from kubelite import KubeLite

CLAIMS = "/apis/gpu.scheduling/v1/namespaces/{}/gpuclaims"
POD_GROUPS_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.x-k8s.io"},
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


class Stage:
    """Actions on the cluster and reads of its state."""

    def __init__(self, client: KubeClient, replica: Replica) -> None:
        self.client = client
        self.replica = replica
        self.scheduler = replica.scheduler
        self._steps: dict[str, int] = {}
        self._count_steps(self.scheduler.lease_gc, "step")
        self._count_steps(self.scheduler, "plan_step")

    async def node(
        self,
        name: str,
        gpus: int = 4,
        labels: Mapping[str, str] | None = None,
        devices: list[dict[str, Any]] | None = None,
        **status: Any,
    ) -> None:
        meta = {"name": name, "labels": dict(labels or {})}
        await self.client.write_json("POST", "/api/v1/nodes", {"metadata": meta})
        ready = {"conditions": [{"type": "Ready", "status": "True"}], **status}
        await self._patch(f"/api/v1/nodes/{name}/status", {"status": ready})
        report = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuNodeStatus",
            "metadata": {"name": name},
            "spec": {"nodeName": name},
        }
        await self.client.write_json("POST", "/apis/gpu.scheduling/v1/gpunodestatuses", report)
        await self.report(name, devices or [device(at) for at in range(gpus)])
        await self.until(lambda: name in self.scheduler.ledger.cluster.nodes)

    async def report(self, name: str, devices: list[dict[str, Any]]) -> None:
        await self._patch(
            f"/apis/gpu.scheduling/v1/gpunodestatuses/{name}/status",
            {"status": {"devices": devices, "total": len(devices)}},
        )

    async def claim(
        self,
        name: str,
        count: int = 1,
        namespace: str = "default",
        annotations: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        **devices: Any,
    ) -> None:
        body = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {"devices": {"count": count, **devices}, **(spec or {})},
        }
        await self.client.write_json("POST", CLAIMS.format(namespace), body)
        await self.until(lambda: (namespace, name) in self.scheduler.ledger.claims)

    async def pod(
        self,
        name: str,
        claim: str = "",
        annotations: Mapping[str, str] | None = None,
        *,
        namespace: str = "default",
        **spec: Any,
    ) -> Pod:
        notes = {**({"gpu.scheduling/claim": claim} if claim else {}), **(annotations or {})}
        body = {
            "metadata": {"name": name, "annotations": notes},
            "spec": {
                "schedulerName": "gpu-scheduler",
                "containers": [{"name": "c", "image": "i"}],
                **spec,
            },
        }
        await self.client.write_json("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        pod = await self.client.get(PODS, name, namespace)
        await self.until(lambda: pod.metadata.uid in self.scheduler.ledger.pods)
        return pod

    async def group(self, name: str, least: int, seconds: int = 60, namespace: str = "default") -> None:
        body = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": least, "scheduleTimeoutSeconds": seconds},
        }
        path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups"
        await self.client.write_json("POST", path, body)
        await self.until(lambda: (namespace, name) in self.scheduler.ledger.gangs.groups)

    async def phase(self, pod: Pod, phase: str) -> None:
        meta = pod.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
        await self._patch(path, {"status": {"phase": phase}})

    async def delete(self, pod: Pod) -> None:
        await self.client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_seconds=0)

    async def read(self, pod: Pod) -> Pod:
        return await self.client.get(PODS, pod.metadata.name, pod.metadata.namespace)

    async def read_claim(self, name: str, namespace: str = "default") -> GpuClaim:
        return await self.client.get(GPU_CLAIMS, name, namespace)

    async def leases(self) -> dict[str, Lease]:
        page = await self.client.list(LEASES, Selection(namespace="default"))
        return {lease.metadata.name: lease for lease in page.items if lease.metadata.name.startswith("gpu-")}

    # The calls of kube-scheduler

    async def call(self, verb: str, body: Any) -> Any:
        """Call a verb of the extender and return its result."""
        status, answer = await self.raw("POST", verb, msgspec.json.encode(body))
        assert status == 200, answer
        return msgspec.json.decode(answer)

    async def raw(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        listening = bind("127.0.0.1", 0)
        async with (
            self.replica.extender().listener().serving(listening),
            aiohttp.ClientSession(address_of(listening)) as session,
            session.request(method, path, data=body) as answer,
        ):
            return answer.status, await answer.read()

    async def filter(self, pod: Pod, *among: str) -> Any:
        pod = await self.read(pod)
        names = list(among) or sorted(self.scheduler.ledger.nodes)
        return await self.call(
            "/filter", {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": names}
        )

    async def bind(self, pod: Pod, node: str) -> str:
        meta = pod.metadata
        body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
        error: str = (await self.call("/bind", body))["Error"]
        return error

    async def schedule(self, pod: Pod, *among: str) -> str:
        """Filter and bind; return the node, or an empty string if the pod was refused."""
        found = await self.filter(pod, *among)
        if not found["NodeNames"]:
            return ""
        node: str = found["NodeNames"][0]
        assert await self.bind(pod, node) == ""
        return node

    async def planned(self) -> None:
        """Wait until a gang has all of its leases."""
        await self.until(lambda: any(plan.leased for plan in self.scheduler.gangs.plans.values()))

    async def reconciled(self) -> None:
        """Wait until lease GC and gang planning have completed a step that started after this call."""
        for name in self._steps:
            await self._step_ends(name)  # one that may be running
            await self._step_ends(name)

    async def _step_ends(self, name: str) -> None:
        steps = self._steps[name]
        self.scheduler.dirty.changed.set()
        self.scheduler._changed.set()
        await self.until(lambda: self._steps[name] > steps)

    def _count_steps(self, component: Any, name: str) -> None:
        step = getattr(component, name)
        self._steps[name] = 0

        async def counted() -> None:
            await step()
            self._steps[name] += 1

        setattr(component, name, counted)

    def note(self, gang: str) -> str:
        """Return why a gang waits, or an empty string."""
        reasons = (entry.reason for entry in self.scheduler.queue if entry.gang and entry.gang.name == gang)
        return next(reasons, "")

    @staticmethod
    async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
        await wait_until(condition, seconds)

    async def _patch(self, path: str, body: Any) -> None:
        await self.client.write_json("PATCH", path, body, "application/merge-patch+json")


def device(at: int, **more: Any) -> dict[str, Any]:
    return {"id": at, "health": "Healthy", "island": "i0", "bandwidthGBps": 600, "uuid": f"GPU-{at}", **more}


@asynccontextmanager
async def open_stage(server: KubeLite, **settings: Any) -> AsyncIterator[Stage]:
    """Run a scheduler replica on a server."""
    async with KubeClient(
        Connection(server.url, token=server.token), requests_per_second=5000, burst=5000
    ) as client:
        waits = Waits(grace=settings.pop("grace", 1.0), permit=2.0)
        chosen = SchedulerSettings(**{"hold": 5.0, "direct_binding": False, **settings})
        timings = ElectionTimings(lease_duration=2.0, renew_deadline=1.5, retry_period=0.1)
        replica = Replica(client, chosen, "default", f"replica-{id(client)}", timings, waits=waits)
        work = asyncio.ensure_future(replica.run())
        stage = Stage(client, replica)
        try:
            await stage.until(lambda: not replica.unready())
            yield stage
        finally:
            work.cancel()
            await asyncio.wait((work,))


@asynccontextmanager
async def open_server() -> AsyncIterator[KubeLite]:
    """Run the embedded API with all kinds that the scheduler reads."""
    async with KubeLite() as server:
        async with KubeClient(Connection(server.url, token=server.token)) as client:
            for definition in (*definitions(), POD_GROUPS_CRD):
                path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                await client.write_json("POST", path, definition)
        yield server
