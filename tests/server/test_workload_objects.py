"""Events, logs and manifests of workloads: Kubernetes decides which caller may read them."""

from collections.abc import AsyncIterator

import httpx
import pytest
import yaml
from tests.server.scope.conftest import Objects

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.model.node import FleetNode
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.object_access import ObjectAccess
from gpufleet.server.routes.live.workload_objects import workload_object_routes

CALLERS = {
    "ann": Caller("ann", "viewer", "kubernetes", owner=TokenOwner("ann")),
    "bob": Caller("bob", "operator", "kubernetes", owner=TokenOwner("bob")),
    "file": Caller("file", "operator"),
    "limited": Caller(
        "ann", "viewer", "kubernetes", namespaces=frozenset({"other"}), owner=TokenOwner("ann")
    ),
}


class Gate(BearerGate):
    async def authenticate(
        self, method: str, path: str, address: str, authorization: bytes | None, cookie: bytes | None = None
    ) -> Caller | None:
        return CALLERS[(authorization or b"").partition(b" ")[2].decode()]


class Reviewer:
    """Lets ann read everything in namespace ml."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str, str]] = []

    async def allowed_on(
        self, owner: TokenOwner, verb: str, group: str, resource: str, namespace: str
    ) -> bool:
        self.asked.append((owner.user, verb, group, resource, namespace))
        return owner.user == "ann" and namespace == "ml"


def fleet() -> Fleet:
    made = Fleet("prod")
    made.put_node(FleetNode(name="n", gpu_count=8))
    job = OwnerRef("job", "Job", "bert", "batch/v1")
    made.put_owner(FleetOwner(uid="job", kind="Job", name="bert", namespace="ml", api_version="batch/v1"))
    for source, uid, owner in (("k8s", "pod", job), ("slurm", "slurm:1", None)):
        made.put_pod(
            FleetPod(
                uid=uid,
                name="bert-0",
                namespace="ml",
                node="n",
                gpus=1,
                source=source,
                owner=owner,
                phase=Status.RUNNING,
            )
        )
    return made


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture
async def http(reviewer: Reviewer) -> AsyncIterator[httpx.AsyncClient]:
    async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
        shown = fleet()
        clusters = Clusters([Cluster("prod", shown, Listing(shown), metrics)])
        routes = workload_object_routes(clusters, {"prod": Objects()}, ObjectAccess({"prod": reviewer}))
        app = create_app(Api(routes=routes, gate=Gate()))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            yield client


async def ask(http: httpx.AsyncClient, who: str, path: str) -> httpx.Response:
    return await http.get(f"/api/workloads/{path}", headers={"authorization": f"Bearer {who}"})


async def test_a_caller_whom_kubernetes_allows_reads_manifest_events_and_logs(
    http: httpx.AsyncClient, reviewer: Reviewer
) -> None:
    manifest = (await ask(http, "ann", "job/manifest")).json()["data"]["yaml"]
    assert yaml.safe_load(manifest) == {"kind": "Job", "metadata": {"name": "bert", "namespace": "ml"}}
    events = (await ask(http, "ann", "job/events")).json()["data"]
    assert [event["name"] for event in events] == ["job", "pod"]
    log = (await ask(http, "ann", "job/logs?pod=bert-0")).json()["data"]
    assert log == {"pod": "bert-0", "text": "log of ml/bert-0"}
    assert reviewer.asked == [
        ("ann", "get", "batch", "jobs", "ml"),
        ("ann", "list", "", "events", "ml"),
        ("ann", "get", "", "pods/log", "ml"),
    ]


@pytest.mark.parametrize("what", ["manifest", "events", "logs"])
async def test_kubernetes_refuses_also_an_operator_of_gpufleet(http: httpx.AsyncClient, what: str) -> None:
    refused = await ask(http, "bob", f"job/{what}")
    assert refused.status_code == 403
    assert "bob may not" in refused.text


async def test_a_caller_whom_kubernetes_did_not_authenticate_is_told_to_log_in_there(
    http: httpx.AsyncClient, reviewer: Reviewer
) -> None:
    refused = await ask(http, "file", "job/logs")
    assert refused.status_code == 403
    assert "log in with a Kubernetes token" in refused.text
    assert reviewer.asked == []


@pytest.mark.parametrize("path", ["job/logs?pod=other", "slurm:1/logs", "none/events"])
async def test_only_the_pods_of_a_workload_on_kubernetes_have_logs(
    http: httpx.AsyncClient, path: str
) -> None:
    assert (await ask(http, "ann", path)).status_code == 404


async def test_the_workload_of_another_namespace_does_not_exist(
    http: httpx.AsyncClient, reviewer: Reviewer
) -> None:
    assert (await ask(http, "limited", "job/manifest")).status_code == 404
    assert reviewer.asked == []
