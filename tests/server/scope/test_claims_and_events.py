"""What a caller who is limited to a namespace sees of claims, leases and events."""

from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx
from tests.accounting.histories import Server
from tests.server.scope.conftest import CALLERS, SECRET, Gate, as_caller

from gpufleet.fleet.clusters import Cluster
from gpufleet.model.node import FleetNode
from gpufleet.model.workload import FleetPod
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import Caller
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.answers import Answer
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import get
from gpufleet.server.routes.live.events import QUEUE_SIZE, _events


async def data(http: httpx.AsyncClient, path: str, caller: str = "mine") -> Any:
    answer = await http.get(path, headers=as_caller(caller))
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_claims_and_leases_are_those_of_the_callers_pods(http: httpx.AsyncClient) -> None:
    claims = await data(http, "/api/claims")
    assert ([row["name"] for row in claims["data"]], claims["total"]) == (["mine-held", "mine-wants"], 2)
    leases = await data(http, "/api/leases")
    assert ([(row["gpu"], len(row["holders"])) for row in leases["data"]], leases["total"]) == ([(0, 1)], 1)
    assert (await data(http, "/api/leases", "both")) == (await data(http, "/api/leases", "all"))
    assert await data(http, f"/api/claims?namespace={SECRET}") == {"data": [], "total": 0}


async def test_a_claim_of_another_namespace_is_like_one_that_does_not_exist(http: httpx.AsyncClient) -> None:
    hidden = await http.get(f"/api/claims/{SECRET}/{SECRET}-wants/explain", headers=as_caller("mine"))
    missing = await http.get(f"/api/claims/{SECRET}/nothing/explain", headers=as_caller("mine"))
    assert (hidden.status_code, missing.status_code) == (404, 404)
    message = missing.json()["message"]
    assert hidden.json()["message"].replace(f"{SECRET}-wants", "nothing") == message


async def test_an_explanation_does_not_name_pods_of_other_namespaces(http: httpx.AsyncClient) -> None:
    path = "/api/claims/mine/mine-wants/explain"
    full, limited = await data(http, path, "all"), await data(http, path)
    wait = next(each for each in full["remedies"] if each.startswith("wait for"))
    assert f"pod {SECRET}/pod-{SECRET}-held" in wait
    hidden = next(each for each in limited["remedies"] if each.startswith("wait for"))
    assert hidden == wait.replace(f"pod {SECRET}/pod-{SECRET}-held", "a pod of another namespace")
    assert "pod mine/pod-mine-held" in hidden
    assert (limited["sentence"], limited["reasons"]) == (full["sentence"], full["reasons"])


async def test_a_caller_asks_for_hypothetical_pods_of_its_own_namespaces_only(
    http: httpx.AsyncClient,
) -> None:
    for path in ("/api/queue/estimate", "/api/queue/fit"):
        for namespace in (SECRET, "nothing"):
            answer = await http.get(f"{path}?gpus=1&namespace={namespace}", headers=as_caller("mine"))
            message = f"parameter namespace: {namespace} is not one of your namespaces"
            assert (answer.status_code, answer.json()["message"]) == (404, message)
        await data(http, f"{path}?gpus=1&namespace=mine")
        await data(http, f"{path}?gpus=1&namespace={SECRET}", "all")


async def test_a_stream_has_the_changes_of_visible_workloads_and_of_nodes(
    cluster: tuple[Cluster, Server],
) -> None:
    live = cluster[0]
    live.fleet.refresh()
    live.fleet.changes.recent.clear()
    stream = _events(live, Lifecycle(), 0.05, deque(maxlen=QUEUE_SIZE), namespaces=CALLERS["mine"].namespaces)
    events = cast(AsyncGenerator[bytes, None], stream)
    await anext(events)
    assert await anext(events) == b": still here\n\n"
    for number in range(QUEUE_SIZE + 10):
        live.fleet.put_pod(FleetPod(uid=f"{SECRET}-{number}-new", name="new", namespace=SECRET, gpus=1))
    live.fleet.put_pod(FleetPod(uid="mine-new", name="new", namespace="mine", gpus=1))
    live.fleet.put_node(FleetNode(name="a", gpu_count=8, ready=False))
    live.fleet.refresh()
    received = [await anext(events), await anext(events), await anext(events)]
    assert sorted(event.partition(b"\n")[0] for event in received[:2]) == [b"event: node", b"event: workload"]
    assert received[2] == b": still here\n\n", "changes of others are neither sent nor counted as lost"
    assert b"namespace" not in b"".join(received)
    await events.aclose()


async def test_a_stream_may_not_go_on_when_its_callers_namespaces_change() -> None:
    caller = CALLERS["mine"]

    class ChangingGate(Gate):
        async def authenticate(
            self,
            method: str,
            path: str,
            address: str,
            authorization: bytes | None,
            cookie: bytes | None = None,
        ) -> Caller | None:
            return caller

    @get("/api/allowed", scope="public")
    async def allowed(context: RequestContext) -> Answer[list[bool]]:
        """Check twice, the second time as another caller."""
        nonlocal caller
        before = await context.still_allowed()
        caller = CALLERS["none"]
        return Answer([before, await context.still_allowed()])

    app = create_app(Api(routes=[allowed], gate=ChangingGate()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as http:
        assert (await http.get("/api/allowed")).json()["data"] == [True, False]
