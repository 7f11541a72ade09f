"""Test the client, the reflector and the CRDs on a real API server."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from e2e.cluster import Cluster, CommandFailed
from e2e.system.release import CRDS, delete_crds
from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    PODS,
    Backoff,
    Discovery,
    ElectionTimings,
    EventRecorder,
    KubeClient,
    LeaderElection,
    Reflector,
    Selection,
    WatchTimings,
    load_connection,
)
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    ObjectNotFound,
    Unauthorized,
)
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.objects import KubeObject, Lease, LeaseSpec, ObjectMeta, ObjectReference, Owner

TIMINGS = WatchTimings(backoff=Backoff(initial=0.1, maximum=1.0), idle_timeout=3.0, duration=60.0)


@pytest.fixture(scope="module")
def crds(cluster: Cluster) -> Iterator[None]:
    """Install the CRDs of the chart with `kubectl apply`."""
    cluster.kubectl("apply", "-f", str(CRDS))
    for name in ("gpuclaims.gpu.scheduling", "gpunodestatuses.gpu.scheduling"):
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    yield
    delete_crds(cluster)


@asynccontextmanager
async def connected(kubeconfig: Path, **options: Any) -> AsyncIterator[KubeClient]:
    connection = load_connection(str(kubeconfig))
    async with KubeClient(connection, requests_per_second=500, burst=500, **options) as client:
        yield client


async def until(what: str, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  (the change happens in another process)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


def lease(namespace: str, name: str, holder: str = "pod-a") -> Lease:
    return Lease(metadata=ObjectMeta(name=name, namespace=namespace), spec=LeaseSpec(holder_identity=holder))


async def test_create_replace_patch_and_delete_with_preconditions(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster.kubeconfig) as client:
        first = await client.create(LEASES, lease(namespace, "gpu-a-0"))
        with pytest.raises(AlreadyExists):
            await client.create(LEASES, lease(namespace, "gpu-a-0"))
        changed = structs.replace(first, spec=LeaseSpec(holder_identity="pod-b"))
        second = await client.replace(LEASES, changed)
        with pytest.raises(Conflict):
            await client.replace(LEASES, changed)
        third = await client.patch(
            LEASES, "gpu-a-0", patch.merge({"metadata": {"labels": {"a": "b"}}}), namespace
        )
        assert third.metadata.labels == {"a": "b"}
        assert third.spec == second.spec
        with pytest.raises(Conflict):
            await client.delete(
                LEASES, "gpu-a-0", namespace, resource_version=second.metadata.resource_version
            )
        with pytest.raises(Conflict):
            await client.delete(LEASES, "gpu-a-0", namespace, uid="another")
        meta = third.metadata
        await client.delete(
            LEASES, "gpu-a-0", namespace, uid=meta.uid, resource_version=meta.resource_version
        )
        with pytest.raises(ObjectNotFound):
            await client.get(LEASES, "gpu-a-0", namespace)


INVALID_CLAIMS = [
    ({"count": 0}, "count must be between 1 and 64"),
    ({"count": 65}, "count must be between 1 and 64"),
    ({"count": 1, "policy": "best"}, 'Unsupported value: "best"'),
    ({"count": 1, "policy": "preferIds"}, "needs at least one GPU id in preferIds"),
    ({"count": 1, "share": 0.5}, "share is for claims with exclusivity Shared only"),
    ({"count": 1, "exclusivity": "Shared", "share": 1.5}, "share must be between 0.01 and 1.0 of a GPU"),
    ({"count": 1, "migProfile": "1g.10gb"}, "migProfile is for claims with exclusivity MIG only"),
    ({"count": 2, "policy": "spread"}, "they exclude each other if count is more than 1"),
]


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize(("devices", "sentence"), INVALID_CLAIMS)
def test_an_invalid_claim_is_refused_with_a_reason(
    cluster: Cluster, namespace: str, tmp_path: Path, devices: dict[str, Any], sentence: str
) -> None:
    claim = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "wrong"},
        "spec": {"devices": devices, "topology": {"mode": "Required"}},
    }
    file = tmp_path / "claim.yaml"
    file.write_text(yaml.safe_dump(claim))
    with pytest.raises(CommandFailed, match=sentence.replace(".", r"\.")):
        cluster.kubectl("apply", "-f", str(file), namespace=namespace)


@pytest.mark.usefixtures("crds")
async def test_kubectl_shows_claims_and_their_events(cluster: Cluster, namespace: str) -> None:
    claim = GpuClaim(
        metadata=ObjectMeta(name="two", namespace=namespace), spec=ClaimSpec(ClaimDevices(count=2))
    )
    async with connected(cluster.kubeconfig) as client:
        created = await client.create(GPU_CLAIMS, claim)
        with pytest.raises(Invalid, match="between 1 and 64"):
            await client.create(GPU_CLAIMS, structs.replace(claim, spec=ClaimSpec(ClaimDevices(count=99))))
        head, row = cluster.kubectl("get", "gclaim", namespace=namespace).splitlines()
        assert head.split() == ["NAME", "PHASE", "NODE", "GPUS", "AGE"]
        assert row.split()[:3] == ["two", "Pending", "2"]
        bound = {"phase": "Bound", "nodeName": "node-a", "gpuIds": [0, 1], "allocated": "node-a:0,1"}
        await client.patch(
            GPU_CLAIMS,
            "two",
            patch.merge({"spec": {"devices": {"count": 3}}, "status": bound}),
            namespace,
            subresource="status",
        )
        read = await client.get(GPU_CLAIMS, "two", namespace)
        assert (read.status.allocated, read.spec) == ("node-a:0,1", created.spec), (
            "the spec in a status patch is ignored"
        )
        about = ObjectReference("gpu.scheduling/v1", "GpuClaim", namespace, "two", read.metadata.uid)
        recorder = EventRecorder(client, "gpu-scheduler", "e2e")
        await recorder.record(about, "Bound", "GPUs 0 and 1 of node-a")
    assert "GPUs 0 and 1 of node-a" in cluster.kubectl("describe", "gclaim", "two", namespace=namespace)
    assert "adjacent ids" in cluster.kubectl("explain", "gclaim.spec.devices.policy")
    assert "two" in cluster.kubectl("get", "gpu", "-o", "name", namespace=namespace)


@pytest.mark.usefixtures("crds")
async def test_an_agent_and_an_operator_own_different_fields_of_one_gpu(cluster: Cluster) -> None:
    def report(health: Any) -> GpuNodeStatus:
        device = DeviceStatus(id=0, health=health, bandwidth_gbps=600)
        status = NodeGpus(devices=(device, DeviceStatus(id=1, health="Healthy")), total=2, free=1)
        return GpuNodeStatus(spec=NodeGpusSpec("node-a"), status=status)

    async with connected(cluster.kubeconfig, field_manager="gpufleet-agent") as agent:
        await agent.patch(GPU_NODE_STATUSES, "node-a", patch.apply({"spec": {"nodeName": "node-a"}}))
        await agent.patch(GPU_NODE_STATUSES, "node-a", patch.apply(report("Healthy")), subresource="status")
        cordon = {"status": {"devices": [{"id": 0, "cordoned": True}]}}
        await agent.patch(
            GPU_NODE_STATUSES, "node-a", patch.apply(cordon, manager="operator"), subresource="status"
        )
        status = await agent.patch(
            GPU_NODE_STATUSES, "node-a", patch.apply(report("Unhealthy")), subresource="status"
        )
        assert [(d.id, d.health, d.cordoned) for d in status.status.devices] == [
            (0, "Unhealthy", True),
            (1, "Healthy", False),
        ]
        head, row = cluster.kubectl("get", "gns").splitlines()
        assert head.split() == ["NAME", "TOTAL", "FREE", "UNHEALTHY", "AGE"]
        assert row.split()[:4] == ["node-a", "2", "1", "0"]
        await agent.delete(GPU_NODE_STATUSES, "node-a")


async def test_a_reflector_recovers_from_connection_faults_and_a_restart(
    cluster: Cluster, namespace: str
) -> None:
    with cluster.proxy() as (proxy, admin):
        async with (
            connected(admin.kubeconfig, timeout=5.0) as watcher,
            connected(cluster.kubeconfig) as writer,
        ):
            await asyncio.gather(
                *(writer.create(LEASES, lease(namespace, f"gpu-{n:03}")) for n in range(250))
            )
            reflector = Reflector(watcher, LEASES, Selection(namespace), page_size=100, timings=TIMINGS)
            task = asyncio.create_task(reflector.run())

            async def converges() -> None:
                expected = {
                    item.metadata.name: item.metadata.resource_version
                    for item in (await writer.list(LEASES, Selection(namespace))).items
                }
                await until(
                    "the cache matches the server",
                    lambda: (
                        {i.metadata.name: i.metadata.resource_version for i in reflector.cache} == expected
                    ),
                )

            await reflector.synced()
            await converges()
            for number, inject in enumerate((proxy.drop, proxy.cut, proxy.stall)):
                inject()
                await writer.delete(LEASES, f"gpu-{number:03}", namespace)
                await writer.create(LEASES, lease(namespace, f"new-{number}"))
                proxy.heal()
                await converges()
            assert reflector.state.lists == 1, "watches resume without another list"
            await asyncio.to_thread(cluster.apiserver.restart)
            await writer.create(LEASES, lease(namespace, "after-the-restart"))
            await converges()
            assert reflector.state.watches < 40
            task.cancel()
            await asyncio.wait((task,))


async def test_a_watch_from_a_compacted_version_raises_gone(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster.kubeconfig) as client:
        await client.create(LEASES, lease(namespace, "a"))

        async def watch_from_version_1() -> None:
            async for _ in client.watch(LEASES, Selection(namespace), resource_version="1", seconds=20):
                pass

        with pytest.raises(Gone):
            await watch_from_version_1()


async def test_a_binding_sets_node_and_annotations_in_one_write(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster.kubeconfig) as client:
        await client.write_json("POST", NODES.path(), {"kind": "Node", "metadata": {"name": "bind-node"}})
        pod = {
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]},
        }
        await client.write_json("POST", PODS.path(namespace), pod)
        created = await client.get(PODS, "p", namespace)
        with pytest.raises(Conflict):
            await client.bind(namespace, "p", "another-uid", "bind-node")
        await client.bind(
            namespace, "p", created.metadata.uid, "bind-node", {"gpu.scheduling/allocated": "bind-node:0"}
        )
        bound = await client.get(PODS, "p", namespace)
        assert bound.spec.node_name == "bind-node"
        assert bound.metadata.annotations["gpu.scheduling/allocated"] == "bind-node:0"
        with pytest.raises(Conflict):
            await client.bind(namespace, "p", created.metadata.uid, "bind-node")
        await client.delete(PODS, "p", namespace, grace_seconds=0)
        await client.delete(NODES, "bind-node")


async def test_discovery_finds_any_kind(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "deployment", "d", "--image=i", namespace=namespace)
    async with connected(cluster.kubeconfig) as client:
        discovery = Discovery(client)
        metadata_only = await discovery.find("apps/v1", "Deployment", KubeObject)
        assert [
            item.metadata.name for item in (await client.list(metadata_only, Selection(namespace))).items
        ] == ["d"]
        full = await discovery.find("apps/v1", "Deployment", Owner)
        assert (await client.get(full, "d", namespace)).spec.replicas == 1
        with pytest.raises(ObjectNotFound, match="no kind Nothing"):
            await discovery.find("apps/v1", "Nothing", KubeObject)


async def test_rbac_applies_to_a_service_account_and_a_rotated_token_is_used(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    account = cluster.service_account(namespace, "default")
    assert account.token is not None
    token = tmp_path / "token"
    token.write_text("expired")
    connection = dataclasses.replace(load_connection(str(account.kubeconfig)), token=token)
    async with KubeClient(connection) as client:
        with pytest.raises(Unauthorized):
            await client.list(LEASES, Selection(namespace))
        token.write_text(account.token)
        with pytest.raises(Forbidden, match="cannot list resource"):
            await client.list(LEASES, Selection(namespace))
        cluster.kubectl(
            "create",
            "role",
            "leases",
            "--verb=*",
            "--resource=leases.coordination.k8s.io",
            namespace=namespace,
        )
        cluster.kubectl(
            "create",
            "rolebinding",
            "leases",
            "--role=leases",
            f"--serviceaccount={namespace}:default",
            namespace=namespace,
        )
        assert (await client.list(LEASES, Selection(namespace))).items == []


async def test_a_disconnected_leader_is_replaced(cluster: Cluster, namespace: str) -> None:
    timings = ElectionTimings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.2)
    leading: set[str] = set()

    def lead(name: str) -> Callable[[], Any]:
        async def work() -> None:
            assert not leading
            leading.add(name)
            try:
                await asyncio.Event().wait()
            finally:
                leading.discard(name)

        return work

    with cluster.proxy() as (proxy, admin):
        async with (
            connected(admin.kubeconfig, timeout=1.0) as unstable,
            connected(cluster.kubeconfig) as stable,
        ):
            a, b = (
                LeaderElection(unstable, namespace, "leader", "a", timings),
                LeaderElection(stable, namespace, "leader", "b", timings),
            )
            first = asyncio.create_task(a.run(lead("a")))
            await until("a leads", lambda: leading == {"a"})
            second = asyncio.create_task(b.run(lead("b")))
            proxy.stall()
            await until("b leads", lambda: leading == {"b"})
            proxy.heal()
            await until("a sees that b leads", lambda: a.leader == "b")
            for task in (first, second):
                task.cancel()
            await asyncio.wait((first, second))
