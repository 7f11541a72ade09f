"""Simulate the kubelets of thousands of nodes.

The simulation runs in its own thread with its own event loop. It watches bound pods and updates the status of those
on its nodes (`pods.py`). Nodes are ready when they are created. Heartbeats are off by default: without the node
lifecycle controllers they have no effect, and a thousand nodes would cost a hundred writes per second.

We don't use KWOK because it resolves no environment, can't report the environment of a container, and would be
another program to build on a new machine.
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
_TERMINAL_PHASES = ("Succeeded", "Failed")


class FakeNodes:
    """Nodes that exist only in the API server; a context manager that removes them at the end."""

    def __init__(self, identity: Identity, *, heartbeat_s: float | None = None) -> None:
        self._background = Background("fake nodes")
        self._api: Api = self._background.call(_construct(Api, identity))
        self._heartbeat_s = heartbeat_s
        self._nodes: dict[str, dict[str, Any]] = {}
        self._disconnected: set[str] = set()
        self._pods: dict[str, FakePod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._removals: set[str] = set()
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self._background.start(self._follow_pods())
        if heartbeat_s:
            self._background.start(self._send_heartbeats(heartbeat_s))

    # For tests

    def add(
        self,
        *names: str,
        capacity: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
    ) -> list[str]:
        """Create identical ready nodes; `capacity`, such as `{"nvidia.com/gpu": "8"}`, is added to the default."""
        nodes = [
            status.node(name, self._address(), capacity or {}, labels or {}, [dict(each) for each in taints])
            for name in names
        ]
        self._background.call(self._create(nodes), timeout=300)
        return list(names)

    @property
    def names(self) -> list[str]:
        """The names of all nodes."""
        return list(self._nodes)

    def remove(self, *names: str) -> None:
        """Delete nodes. Their pods stay until they are deleted, and are then removed as on an existing node."""
        self._background.call(self._delete(names), timeout=300)

    def set_ready(self, name: str, ready: bool) -> None:
        """Write the Ready condition of a node, as its kubelet would."""
        body = {"status": {"conditions": [status.ready(ready)]}}
        self._background.call(self._api.call("PATCH", f"/api/v1/nodes/{name}/status", body, STRATEGIC))

    def disconnect(self, name: str) -> None:
        """Stop the heartbeats and pod updates of a node until `reconnect`."""
        self._background.call_function(lambda: self._disconnected.add(name))

    def reconnect(self, name: str) -> None:
        """Resume the heartbeats and pod updates of a node."""
        self._background.call(self._resume(name))

    def finish(self, namespace: str, pod: str, exit_code: int = 0) -> None:
        """End the containers of a running pod."""
        fake_pod = self._started(namespace, pod)
        self._background.call_function(lambda: fake_pod.exit(exit_code))

    def environment(self, namespace: str, pod: str, container: str | None = None) -> dict[str, str]:
        """Return the environment of a container when it started; by default of the first container."""
        fake_pod = self._started(namespace, pod)
        name = container or fake_pod.object["spec"]["containers"][0]["name"]
        return dict(fake_pod.environments[name])

    def close(self) -> None:
        """Remove the nodes and stop."""
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
            await asyncio.gather(*(self._create_lease(node["metadata"]["name"]) for node in nodes))

    async def _delete(self, names: tuple[str, ...]) -> None:
        await asyncio.gather(
            *(_ignore_not_found(self._api.call("DELETE", f"/api/v1/nodes/{name}")) for name in names)
        )
        if self._heartbeat_s:
            await asyncio.gather(
                *(_ignore_not_found(self._api.call("DELETE", f"{_LEASES}/{name}")) for name in names)
            )
        for name in names:
            self._nodes.pop(name, None)
            self._disconnected.discard(name)

    async def _create_lease(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _micro_time()}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": spec,
        }
        await self._api.call("POST", _LEASES, lease)

    async def _send_heartbeats(self, period_s: float) -> None:
        """Renew each node's lease once a period."""
        while True:
            await asyncio.sleep(period_s)
            await asyncio.gather(
                *(self._renew_lease(name) for name in self._nodes if name not in self._disconnected)
            )

    async def _renew_lease(self, name: str) -> None:
        with contextlib.suppress(RequestFailed, aiohttp.ClientError, TimeoutError):
            body = {"spec": {"renewTime": _micro_time()}}
            await self._api.call("PATCH", f"{_LEASES}/{name}", body, MERGE)

    async def _resume(self, name: str) -> None:
        self._disconnected.discard(name)
        for fake_pod in list(self._pods.values()):
            if fake_pod.object["spec"]["nodeName"] == name:
                self._update(fake_pod.object)

    # Pods

    async def _follow_pods(self) -> None:
        """List and watch bound pods; list again when the watch fails."""
        while True:
            try:
                pods, version = await self._api.list("/api/v1/pods", _BOUND)
                for deleted in self._pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
                    self._forget(deleted)
                for pod in pods:
                    self._update(pod)
                await self._watch_pods(version)
            except (Gone, RequestFailed, aiohttp.ClientError, ConnectionError, TimeoutError):
                await asyncio.sleep(0.2)

    async def _watch_pods(self, version: str) -> None:
        async for kind, pod in self._api.watch("/api/v1/pods", _BOUND, version):
            if kind == "DELETED":
                self._forget(pod["metadata"]["uid"])
            elif kind != "BOOKMARK":
                self._update(pod)

    def _update(self, pod: Mapping[str, Any]) -> None:
        uid, name = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        node = self._nodes.get(name)
        fake_pod = self._pods.get(uid)
        if fake_pod is None:
            if node is None:
                return
            host = node["status"]["addresses"][0]["address"]
            fake_pod = self._pods[uid] = FakePod(self._api, pod, host, self._address())
        fake_pod.object = pod
        if name in self._disconnected:
            return
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._removals:
                self._removals.add(uid)
                self._start_task(uid, fake_pod.remove())
        elif node and uid not in self._tasks and pod.get("status", {}).get("phase") not in _TERMINAL_PHASES:
            self._start_task(uid, self._admit_and_run(fake_pod, node))

    async def _admit_and_run(self, fake_pod: FakePod, node: Mapping[str, Any]) -> None:
        name = node["metadata"]["name"]
        others = [
            each.object
            for each in self._pods.values()
            if each is not fake_pod
            and each.object["spec"]["nodeName"] == name
            and each.object.get("status", {}).get("phase") not in _TERMINAL_PHASES
        ]
        if short := admission.shortage(fake_pod.object, others, node["status"]["allocatable"]):
            await fake_pod.reject(
                f"OutOf{short}", f"Pod was rejected: Node didn't have enough resource: {short}"
            )
            return
        await fake_pod.run()

    def _start_task(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        """Replace the current task of a pod by `work`."""
        if previous := self._tasks.get(uid):
            previous.cancel()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[uid] = task
        task.add_done_callback(self._record_problem)

    def _record_problem(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self.problems.append(f"{type(error).__name__}: {error}")

    def _forget(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._removals.discard(uid)
        if task := self._tasks.pop(uid, None):
            task.cancel()

    def _started(self, namespace: str, name: str, timeout: float = 60) -> FakePod:
        """Return a pod after its containers have started."""
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


async def _construct(make: Callable[[Identity], Api], identity: Identity) -> Api:
    """Create the client session inside its event loop."""
    return make(identity)


async def _ignore_not_found(call: Awaitable[Any]) -> None:
    try:
        await call
    except RequestFailed as refusal:
        if refusal.status != 404:
            raise


def _micro_time() -> str:
    return status.now().replace("Z", ".000000Z")
