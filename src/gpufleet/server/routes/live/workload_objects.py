"""`/api/workloads/{uid}/manifest`, `/events` and `/logs`: the objects of a workload, as Kubernetes has them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec
import yaml
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.workloads.lookup import find_workload
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.kubernetes.workload_objects import WorkloadEvent
from gpufleet.model.namespaces import Namespaces
from gpufleet.server.auth.object_access import ObjectAccess
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams

MAX_PODS = 20
"""Pods of a workload whose events are read."""


class ObjectReader(Protocol):
    """Reads objects: `gpufleet.kubernetes.workload_objects.WorkloadObjects`, or a fake in tests."""

    async def resource_of(self, api_version: str, kind: str) -> tuple[str, str]:
        """Return the API group and the plural name of a kind."""

    async def manifest(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return an object."""

    async def events(self, namespace: str, uids: Sequence[str]) -> list[WorkloadEvent]:
        """Return the events about some objects, the newest first."""

    async def logs(
        self, namespace: str, pod: str, *, container: str = "", lines: int, previous: bool = False
    ) -> str:
        """Return the last lines of a log."""


class PodParams(ClusterParams):
    """A pod of the workload."""

    pod: Annotated[str, Meta(max_length=253, description="Name of one of its pods.")] = ""


class LogParams(PodParams, rename="camel"):
    """The part of a log to return."""

    container: Annotated[str, Meta(max_length=253, description="Container; the only one if not given.")] = ""
    lines: Annotated[int, Meta(ge=1, le=5000, description="Last lines of the log.")] = 500
    previous: Annotated[bool, Meta(description="The container before the last restart.")] = False


class Manifest(msgspec.Struct):
    """An object as YAML."""

    yaml: str


class Log(msgspec.Struct):
    """The last lines of a log, at most 1 MiB; each begins with its time."""

    pod: str
    text: str


def workload_object_routes(
    clusters: Clusters, readers: Mapping[str, ObjectReader], access: ObjectAccess
) -> list[Route]:
    """Return the routes; `readers` are those of the clusters on Kubernetes."""

    def reader_of(cluster: str, workload: Workload) -> ObjectReader:
        if workload.source != "k8s" or cluster not in readers:
            raise NotFound(f"{workload.name} is not on Kubernetes")
        return readers[cluster]

    @get("/api/workloads/{uid:str}/manifest", scope="filtered", example=Manifest("apiVersion: batch/v1\n"))
    async def workload_manifest(
        uid: str, query: PodParams, context: RequestContext, namespaces: Namespaces
    ) -> Manifest:
        """The manifest of a workload or of one of its pods, if Kubernetes lets the caller get it."""
        cluster = clusters.synced(query.cluster)
        workload = find_workload(cluster.fleet, uid, namespaces).workload
        reader = reader_of(cluster.name, workload)
        kind, name = (workload.api_version, workload.kind), workload.name
        if query.pod:
            kind, name = ("v1", "Pod"), _pod(workload, query.pod)
        group, resource = await reader.resource_of(*kind)
        await access.check(context.caller, cluster.name, "get", group, resource, workload.namespace)
        found = await reader.manifest(*kind, workload.namespace, name)
        return Manifest(await asyncio.to_thread(yaml.safe_dump, found, sort_keys=False))

    @get("/api/workloads/{uid:str}/events", scope="filtered", example=[_EVENT])
    async def workload_events(
        uid: str, query: ClusterParams, context: RequestContext, namespaces: Namespaces
    ) -> list[WorkloadEvent]:
        """The events about a workload and its first 20 pods, the newest first, if the caller may list events."""
        cluster = clusters.synced(query.cluster)
        workload = find_workload(cluster.fleet, uid, namespaces).workload
        reader = reader_of(cluster.name, workload)
        await access.check(context.caller, cluster.name, "list", "", "events", workload.namespace)
        uids = dict.fromkeys([workload.uid, *(pod.uid for pod in workload.pods[:MAX_PODS])])
        return await reader.events(workload.namespace, list(uids))

    @get("/api/workloads/{uid:str}/logs", scope="filtered", example=Log("train-0", "step 1 loss 2.31\n"))
    async def workload_logs(
        uid: str, query: LogParams, context: RequestContext, namespaces: Namespaces
    ) -> Log:
        """The last lines of the log of a pod of a workload, if Kubernetes lets the caller get it."""
        cluster = clusters.synced(query.cluster)
        workload = find_workload(cluster.fleet, uid, namespaces).workload
        reader = reader_of(cluster.name, workload)
        pod = _pod(workload, query.pod)
        await access.check(context.caller, cluster.name, "get", "", "pods/log", workload.namespace)
        text = await reader.logs(
            workload.namespace,
            pod,
            container=query.container,
            lines=query.lines,
            previous=query.previous,
        )
        return Log(pod, text)

    return [workload_manifest, workload_events, workload_logs]


def _pod(workload: Workload, name: str) -> str:
    """Return the name of a pod of a workload: the first one if `name` is empty."""
    names = [pod.name for pod in workload.pods if pod.namespace == workload.namespace]
    if name in names or (not name and names):
        return name or names[0]
    raise NotFound(f"{workload.name} has no pod {name[:64]!r}" if name else f"{workload.name} has no pods")


_EVENT = WorkloadEvent(
    "Pod", "train-0", "Normal", "Pulled", "Container image is present", 1, "2026-01-01T00:00:00Z", "kubelet"
)
