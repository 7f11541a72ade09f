"""Simulate one pod on a fake node: write its status as a kubelet would.

A bound pod is admitted, its environment is resolved, its init containers complete, it runs. Annotations on the pod
(or on a Job's template) control what happens:

    e2e.gpufleet/starts-after: "2"    seconds until the containers run, like an image pull
    e2e.gpufleet/runs-for: "1.5"      seconds until they end; without it they run until the pod is deleted
    e2e.gpufleet/exit-code: "1"       their exit code; default 0

Restart policies apply. A deleted pod first gets a terminal phase and is then removed, as under a kubelet, so that
the Job controller can count it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from e2e.cluster import RequestFailed
from e2e.fakenodes import environment, status
from e2e.fakenodes.api import STRATEGIC, Api

STARTS_AFTER = "e2e.gpufleet/starts-after"
RUNS_FOR = "e2e.gpufleet/runs-for"
EXIT_CODE = "e2e.gpufleet/exit-code"
_TERMINATED = 143  # 128 + SIGTERM
_RETRY_S = 0.5


class FakePod:
    """One pod: its last known object and the environments of its containers."""

    def __init__(self, api: Api, pod: Mapping[str, Any], host: str, address: str) -> None:
        self.object = pod
        self.environments: dict[str, dict[str, str]] = {}
        self._api = api
        self._host = host
        self._address = pod.get("status", {}).get("podIP") or address  # kept from an earlier FakeNodes
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._restarts = 0
        self._started_at = status.now()

    @property
    def path(self) -> str:
        """The API path of the pod."""
        metadata = self.object["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    async def run(self) -> None:
        """Write every status from admission to the end of the pod."""
        await self._start()
        while True:
            exit_code = await self._run_once()
            if not self._restarts_after(exit_code):
                break
            self._restarts += 1
        await self._end(exit_code)

    async def reject(self, reason: str, message: str) -> None:
        """Reject the pod as a kubelet without enough resources does."""
        await self._write(status.rejected(reason, message))

    async def remove(self) -> None:
        """Complete a deletion: write a terminal phase, then delete the object."""
        if self.object.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            await self._end(_TERMINATED)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.object["metadata"]["uid"]}}
        await _ignore_replaced_pod(self._api.call("DELETE", self.path, options))

    def exit(self, exit_code: int) -> None:
        """End the containers with an exit code."""
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)

    async def _start(self) -> None:
        if self.object["spec"].get("initContainers") or self._seconds(STARTS_AFTER):
            await self._write(status.waiting(self.object, "PodInitializing", self._host))
        await asyncio.sleep(self._seconds(STARTS_AFTER) or 0)
        while True:
            try:
                await self._resolve()
                return
            except environment.Unresolved as reason:
                problem = status.waiting(self.object, "CreateContainerConfigError", self._host, str(reason))
                await self._write(problem)
            await asyncio.sleep(_RETRY_S)

    async def _resolve(self) -> None:
        seen = {**self.object, "status": {**self.object.get("status", {}), **self._addresses()}}
        spec = self.object["spec"]
        resolved = {}
        for each in (*spec.get("initContainers", []), *spec["containers"]):
            resolved[each["name"]] = await environment.resolve(seen, each, self._fetch)
        self.environments = resolved

    async def _run_once(self) -> int:
        """Run until `exit` is called or the annotated time is over, and return the exit code."""
        await self._write(status.running(self.object, self._host, self._address, self._restarts))
        self._started_at = status.now()
        try:
            return await asyncio.wait_for(asyncio.shield(self._exit_code), self._seconds(RUNS_FOR))
        except TimeoutError:
            return int(self._annotation(EXIT_CODE) or 0)

    def _restarts_after(self, exit_code: int) -> bool:
        policy = self.object["spec"].get("restartPolicy", "Always")
        if self._exit_code.done():
            self._exit_code = asyncio.get_running_loop().create_future()
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)

    async def _end(self, exit_code: int) -> None:
        await self._write(status.ended(self.object, self._started_at, exit_code, self._restarts))

    async def _write(self, pod_status: Mapping[str, Any]) -> None:
        body = {"metadata": {"uid": self.object["metadata"]["uid"]}, "status": pod_status}
        await _ignore_replaced_pod(self._api.call("PATCH", f"{self.path}/status", body, STRATEGIC))

    async def _fetch(self, kind: str, name: str) -> Mapping[str, Any] | None:
        namespace = self.object["metadata"]["namespace"]
        found: Mapping[str, Any] | None = await _ignore_replaced_pod(
            self._api.call("GET", f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        )
        return found

    def _addresses(self) -> dict[str, Any]:
        return {
            "hostIP": self._host,
            "hostIPs": [{"ip": self._host}],
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
        }

    def _annotation(self, name: str) -> str | None:
        value: str | None = (self.object["metadata"].get("annotations") or {}).get(name)
        return value

    def _seconds(self, name: str) -> float | None:
        value = self._annotation(name)
        return None if value is None else float(value)


async def _ignore_replaced_pod(call: Any) -> Any:
    """Ignore that the pod was deleted (404) or replaced by another of the same name (409)."""
    try:
        return await call
    except RequestFailed as refusal:
        if refusal.status not in (404, 409):
            raise
        return None
