"""Kueue's Workloads in the fleet: the queue of a suspended Job, in its row, its hierarchy and its explanation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.sources.kubernetes.test_source import Api, api, controller
from tests.waiting import wait_until

from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.model.workload import QueueState, Status
from gpufleet.server.claim_view import ClaimView, WatchedState, list_state
from gpufleet.sources.kubernetes import KubernetesSource

__all__ = ["api"]

NO_QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota"
WAITS = f"queued in Kueue's LocalQueue team-a: {NO_QUOTA}"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@asynccontextmanager
async def watched(api: Api) -> AsyncIterator[tuple[Fleet, KubernetesSource]]:
    fleet = Fleet("test")
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, fleet, retry_kind=0.01)
        task = asyncio.create_task(source.run())
        await asyncio.wait_for(source.synced(), 10)
        yield fleet, source
        task.cancel()
        await asyncio.wait([task])


class Kueue:
    """Write what a user and Kueue write, in one version of its API."""

    def __init__(self, api: Api, version: str) -> None:
        self.api, self.version = api, version
        self.path = f"/apis/kueue.x-k8s.io/{version}/namespaces/default/workloads"

    async def install(self) -> None:
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": self.version,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": anything},
            "subresources": {"status": {}},
        }
        names = {"plural": "workloads", "singular": "workload", "kind": "Workload"}
        spec = {"group": "kueue.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
        made = {"metadata": {"name": "workloads.kueue.x-k8s.io"}, "spec": spec}
        await self.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)

    async def job(self, name: str, claim: str) -> dict[str, Any]:
        """Create a suspended Job with a claim for each of two pods, and its Workload without quota."""
        labels = {"kueue.x-k8s.io/queue-name": "team-a"}
        template = {
            "metadata": {"annotations": {"gpu.scheduling/claim": claim}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"},
        }
        job = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"suspend": True, "template": template},
        }
        made = await self.api.post(JOBS, job)
        owner = controller(made, "Job", "batch/v1")
        spec = {"queueName": "team-a", "podSets": [{"name": "main", "count": 2, "template": template}]}
        meta = {"name": f"job-{name}", "ownerReferences": [owner]}
        await self.api.post(self.path, {"metadata": meta, "spec": spec})
        await self.condition(name, "QuotaReserved", "False", NO_QUOTA)
        return made

    async def condition(self, name: str, kind: str, status: str, message: str = "", **more: Any) -> None:
        condition = {"type": kind, "status": status, "reason": kind, "message": message}
        body = {"status": {"conditions": [condition], **more}}
        await self.api.patch(f"{self.path}/job-{name}/status", body)


async def claim(api: Api, name: str, count: int) -> None:
    body = {"metadata": {"name": name}, "spec": {"devices": {"count": count}}}
    await api.post("/apis/gpu.scheduling/v1/namespaces/default/gpuclaims", body)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_a_suspended_job_shows_its_queue_and_why_it_is_not_admitted(api: Api, version: str) -> None:
    kueue = Kueue(api, version)
    async with watched(api) as (fleet, _):
        await kueue.install()
        await claim(api, "two", 2)
        uid = (await kueue.job("train", "two"))["metadata"]["uid"]
        found = await wait_until(lambda: fleet.workloads().get(uid))
        await wait_until(lambda: fleet.workloads()[uid].waiting_reason == WAITS)
        found = fleet.workloads()[uid]
        assert (found.status, found.requested, found.gpus) == (Status.PENDING, 4, 0)
        tree = fleet.object_tree(uid)
        assert [(each.kind, each.name) for each in tree.children] == [("Workload", "job-train")]

        await kueue.condition("train", "Admitted", "True", admission={"clusterQueue": "gpus"})
        not_created = "its pods have not been created yet"
        await wait_until(lambda: fleet.workloads()[uid].waiting_reason == not_created)
        queued = fleet.workloads()[uid].queued
        assert queued is not None
        assert (queued.state, queued.queue, queued.cluster_queue) == (QueueState.ADMITTED, "team-a", "gpus")


async def test_a_workload_with_quota_waits_for_its_admission_checks(api: Api) -> None:
    kueue = Kueue(api, "v1beta2")
    async with watched(api) as (fleet, _):
        await kueue.install()
        await claim(api, "two", 2)
        uid = (await kueue.job("train", "two"))["metadata"]["uid"]
        check = {"name": "autoscaler", "state": "Pending", "message": "2 nodes requested"}
        await kueue.condition("train", "QuotaReserved", "True", admissionChecks=[check])
        reason = (
            "queued in Kueue's LocalQueue team-a: quota is reserved, admission checks: "
            "autoscaler is Pending (2 nodes requested)"
        )
        await wait_until(lambda: uid in fleet.workloads() and fleet.workloads()[uid].waiting_reason == reason)


async def test_a_deleted_job_ends_though_kueue_has_not_removed_its_workload(api: Api) -> None:
    kueue = Kueue(api, "v1beta2")
    async with watched(api) as (fleet, _):
        await kueue.install()
        await claim(api, "two", 2)
        uid = (await kueue.job("train", "two"))["metadata"]["uid"]
        await wait_until(lambda: uid in fleet.workloads())
        await api.patch(f"{kueue.path}/job-train", {"metadata": {"finalizers": ["kueue.x-k8s.io/in-use"]}})
        await api.delete(f"{JOBS}/train")
        await wait_until(lambda: uid in fleet.ended())


async def test_explain_names_the_queue_of_a_claim_whose_job_is_not_admitted(api: Api) -> None:
    kueue = Kueue(api, "v1beta2")
    async with watched(api) as (_, source):
        await kueue.install()
        await claim(api, "two", 2)
        await kueue.job("train", "two")
        view = ClaimView(WatchedState(source).read)

        async def is_queued() -> bool:
            return (await view.explain("default", "two")).sentence == WAITS

        async def is_admitted() -> bool:
            return "Kueue" not in (await view.explain("default", "two")).sentence

        await wait_until(is_queued)
        async with KubeClient(Connection(api.url, token=api.token)) as client:
            listed = ClaimView(lambda: list_state(client, "default"))
            assert (await listed.explain("default", "two")).sentence == WAITS
        await kueue.condition("train", "Admitted", "True")
        await wait_until(is_admitted)


async def test_a_cluster_without_kueue_is_not_asked_about_it(api: Api) -> None:
    async with watched(api) as (fleet, source):
        await api.node("a")
        uid = await api.pod("p", "a", 1)
        await wait_until(lambda: uid in fleet.workloads())
        assert source.kueue.reflector is None
        assert ("kueue.x-k8s.io/v1beta2", "Workload") not in source.states()


async def test_a_workload_that_a_pod_owns_does_not_make_pods_owners(api: Api) -> None:
    kueue = Kueue(api, "v1beta2")
    async with watched(api) as (fleet, source):
        await kueue.install()
        await api.node("a")
        await claim(api, "two", 2)
        await kueue.job("train", "two")
        uid = await api.pod("p", "a", 1)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
        meta = {"name": "pod-p", "ownerReferences": [owner]}
        await api.post(kueue.path, {"metadata": meta, "spec": {"queueName": "team-a", "podSets": []}})
        await wait_until(lambda: uid in fleet.workloads() and fleet.workloads()[uid].queued is not None)
        assert ("v1", "Pod") not in source._referenced
