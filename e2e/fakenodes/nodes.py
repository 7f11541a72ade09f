"""Fake nodes: thousands of nodes and their pods, kept by one player as their kubelets would keep them.

The player runs in a thread of its own with its own event loop. It watches the pods that are bound, and plays
those on its nodes (`pods.py`); everybody else's are left alone. Nodes are made ready by the one request that
creates them. Heartbeats are off unless asked for: without the controllers that judge nodes nobody reads them,
and a thousand nodes would cost a hundred writes a second.

Why not KWOK: it resolves no environment, a test can't ask it what a container saw, and it would be one more
program to build on a new machine.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from e2e.cluster import Identity, RequestFailed
from e2e.cluster.background import Background
from e2e.fakenodes import admission, status
from e2e.fakenodes.api import MERGE, STRATEGIC, Api, Gone
from e2e.fakenodes.pods import FakePod

_BOUND = "fieldSelector=spec.nodeName!="
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_SETTLED = ("Succeeded", "Failed")


class FakeNodes:
    """Nodes that only exist in the API server; a context manager that removes them again."""

    def __init__(self, identity: Identity, *, heartbeat_s: float | None = None) -> None:
        self._background = Background("fake nodes")
        self._api: Api = self._background.call(_made(Api, identity))
        self._heartbeat_s = heartbeat_s
        self._nodes: dict[str, dict[str, Any]] = {}
        self._silent: set[str] = set()
        self._pods: dict[str, FakePod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._removals: set[str] = set()
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self._background.start(self._follow_pods())
        if heartbeat_s:
            self._background.start(self._keep_beating(heartbeat_s))

    # What tests ask for

    def add(
        self,
        *names: str,
        capacity: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
    ) -> list[str]:
        """Create ready nodes, all alike; `capacity` such as `{"nvidia.com/gpu": "8"}` is added to the usual."""
        made = [
            status.node(name, self._address(), capacity or {}, labels or {}, [dict(each) for each in taints])
            for name in names
        ]
        self._background.call(self._create(made), timeout=300)
        return list(names)

    @property
    def names(self) -> list[str]:
        """The nodes there are."""
        return list(self._nodes)

    def remove(self, *names: str) -> None:
        """Delete nodes. Their pods stay until somebody deletes them, and then go as from a node that is there."""
        self._background.call(self._delete(names), timeout=300)

    def set_ready(self, name: str, ready: bool) -> None:
        """Write the Ready condition of a node, as its kubelet would."""
        body = {"status": {"conditions": [status.ready(ready)]}}
        self._background.call(self._api.call("PATCH", f"/api/v1/nodes/{name}/status", body, STRATEGIC))

    def disconnect(self, name: str) -> None:
        """The node says nothing any more: no heartbeat, no word about its pods. `hear` ends it."""
        self._background.call_function(lambda: self._silent.add(name))

    def reconnect(self, name: str) -> None:
        """A silent node is back: it takes up its pods where they are."""
        self._background.call(self._return(name))

    def finish(self, namespace: str, pod: str, exit_code: int = 0) -> None:
        """End the containers of a running pod."""
        fake_pod = self._started(namespace, pod)
        self._background.call_function(lambda: fake_pod.exit(exit_code))

    def environment(self, namespace: str, pod: str, container: str | None = None) -> dict[str, str]:
        """What a container of a started pod saw in its environment; the first container unless named."""
        fake_pod = self._started(namespace, pod)
        name = container or fake_pod.object["spec"]["containers"][0]["name"]
        return dict(fake_pod.environments[name])

    def close(self) -> None:
        """Remove the nodes, stop playing."""
        if not self._background.running:
            return
        with contextlib.suppress(RequestFailed, aiohttp.ClientError, TimeoutError):
            self.remove(*self._nodes)
        self._background.call(self._stop())
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Nodes

    async def _create(self, nodes: list[dict[str, Any]]) -> None:
        for node in nodes:
            self._nodes[node["metadata"]["name"]] = node
        await asyncio.gather(*(self._api.call("POST", "/api/v1/nodes", node) for node in nodes))
        if self._heartbeat_s:
            await asyncio.gather(*(self._first_beat(node["metadata"]["name"]) for node in nodes))

    async def _delete(self, names: tuple[str, ...]) -> None:
        await asyncio.gather(
            *(_if_there(self._api.call("DELETE", f"/api/v1/nodes/{name}")) for name in names)
        )
        if self._heartbeat_s:
            await asyncio.gather(
                *(_if_there(self._api.call("DELETE", f"{_LEASES}/{name}")) for name in names)
            )
        for name in names:
            self._nodes.pop(name, None)
            self._silent.discard(name)

    async def _first_beat(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _micro_time()}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": spec,
        }
        await self._api.call("POST", _LEASES, lease)

    async def _keep_beating(self, period_s: float) -> None:
        """Renew each node's lease once a period."""
        while True:
            await asyncio.sleep(period_s)
            await asyncio.gather(*(self._beat(name) for name in self._nodes if name not in self._silent))

    async def _beat(self, name: str) -> None:
        with contextlib.suppress(RequestFailed, aiohttp.ClientError, TimeoutError):
            body = {"spec": {"renewTime": _micro_time()}}
            await self._api.call("PATCH", f"{_LEASES}/{name}", body, MERGE)

    async def _return(self, name: str) -> None:
        self._silent.discard(name)
        for fake_pod in list(self._pods.values()):
            if fake_pod.object["spec"]["nodeName"] == name:
                self._seen(fake_pod.object)

    # Pods

    async def _follow_pods(self) -> None:
        """List, watch, and list again whenever the server has lost the thread."""
        while True:
            try:
                pods, version = await self._api.list("/api/v1/pods", _BOUND)
                for gone in self._pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
                    self._forget(gone)
                for pod in pods:
                    self._seen(pod)
                await self._watch_pods(version)
            except (Gone, RequestFailed, aiohttp.ClientError, ConnectionError, TimeoutError):
                await asyncio.sleep(0.2)

    async def _watch_pods(self, version: str) -> None:
        async for kind, pod in self._api.watch("/api/v1/pods", _BOUND, version):
            if kind == "DELETED":
                self._forget(pod["metadata"]["uid"])
            elif kind != "BOOKMARK":
                self._seen(pod)

    def _seen(self, pod: Mapping[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        node = self._nodes.get(name)
        fake_pod = self._pods.get(uid)
        if fake_pod is None:
            if node is None:
                return
            host = node["status"]["addresses"][0]["address"]
            fake_pod = self._pods[uid] = FakePod(self._api, pod, host, self._address())
        fake_pod.object = pod
        if name in self._silent:
            return
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._removals:
                self._removals.add(uid)
                self._begin(uid, fake_pod.remove())
        elif node and uid not in self._tasks and pod.get("status", {}).get("phase") not in _SETTLED:
            self._begin(uid, self._admit(fake_pod, node))

    async def _admit(self, fake_pod: FakePod, node: Mapping[str, Any]) -> None:
        name = node["metadata"]["name"]
        others = [
            each.object
            for each in self._pods.values()
            if each is not fake_pod
            and each.object["spec"]["nodeName"] == name
            and each.object.get("status", {}).get("phase") not in _SETTLED
        ]
        if short := admission.shortage(fake_pod.object, others, node["status"]["allocatable"]):
            await fake_pod.reject(
                f"OutOf{short}", f"Pod was rejected: Node didn't have enough resource: {short}"
            )
            return
        await fake_pod.play()

    def _begin(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        """Let `work` take the place of whatever plays this pod now."""
        if before := self._tasks.get(uid):
            before.cancel()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[uid] = task
        task.add_done_callback(self._note_problem)

    def _note_problem(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self.problems.append(f"{type(error).__name__}: {error}")

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._removals.discard(uid)
        if task := self._tasks.pop(uid, None):
            task.cancel()

    def _started(self, namespace: str, name: str, timeout: float = 60) -> FakePod:
        """The pod, once its containers have started."""
        deadline = time.monotonic() + timeout
        while True:
            for fake_pod in list(self._pods.values()):
                metadata = fake_pod.object["metadata"]
                if (metadata["namespace"], metadata["name"]) == (namespace, name) and fake_pod.environments:
                    return fake_pod
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"pod {namespace}/{name} has not started on a fake node after {timeout:g} s"
                )
            time.sleep(0.02)

    async def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._api.close()

    def _address(self) -> str:
        number = next(self._numbers)
        return f"10.{64 + number // 65536}.{number // 256 % 256}.{number % 256}"


async def _made(make: Callable[[Identity], Api], identity: Identity) -> Api:
    """Make the session where its loop runs."""
    return make(identity)


async def _if_there(call: Awaitable[Any]) -> None:
    try:
        await call
    except RequestFailed as refusal:
        if refusal.status != 404:
            raise


def _micro_time() -> str:
    return status.now().replace("Z", ".000000Z")
