"""The kubelet's side of a DRA driver: register on a unix socket, prepare and unprepare ResourceClaims.

The kubelet finds the registration socket in its `plugins_registry` directory, also after a restart of its own, asks
for the driver's endpoint, and calls it before it starts a pod that uses a claim. The answer names the CDI devices
that the container runtime must add. It is computed from the claim's allocation each time, so that a call may be
repeated and nothing has to be undone.

Served by grpclib, which the agent has for the kubelet's PodResources anyway.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream

from gpufleet.agent import protobuf
from gpufleet.agent.dra.devices import DraDevice
from gpufleet.agent.dra.prepared import PreparedClaim, PreparedClaims
from gpufleet.agent.pod_resources import RawCodec
from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import RESOURCE_CLAIMS, KubeClient
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.resource_claims import AllocatedDevice, ResourceClaim
from gpufleet.runtime.logs import get_logger

PLUGIN_TYPE = "DRAPlugin"
SERVICE = "v1.DRAPlugin"
"""The version of the service that the kubelet is told; Kubernetes 1.34 and later call it."""
_DRA = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_REGISTRATION = "/pluginregistration.Registration"

# Field numbers in the kubelet's messages.
_INFO_TYPE, _INFO_NAME, _INFO_ENDPOINT, _INFO_VERSIONS = 1, 2, 3, 4
_STATUS_REGISTERED, _STATUS_ERROR = 1, 2
_CLAIMS = 1
_CLAIM_NAMESPACE, _CLAIM_UID, _CLAIM_NAME = 1, 2, 3
_PREPARED_DEVICES, _PREPARED_ERROR = 1, 2
_DEVICE_REQUESTS, _DEVICE_POOL, _DEVICE_NAME, _DEVICE_CDI = 1, 2, 3, 4

Answer = Callable[[bytes], Awaitable[bytes]]
_log = get_logger("agent")


class NotPrepared(GpufleetError):
    """A claim cannot be prepared; the message goes to the kubelet and into the pod's events."""


class DraPlugin:
    """Serves the kubelet; `devices` returns the devices of this node by name."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        driver: str,
        kubelet: Path,
        devices: Callable[[], Mapping[str, DraDevice]],
    ) -> None:
        """`kubelet` is the kubelet's root directory, such as /var/lib/kubelet."""
        self._client = client
        self._node = node
        self._driver = driver
        self._devices = devices
        self._directory = kubelet / "plugins" / driver
        self._endpoint = self._directory / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{driver}-reg.sock"
        self._preparing = asyncio.Lock()
        self._prepared: PreparedClaims | None = None
        self.registered = False
        """Whether the kubelet has accepted the driver."""

    async def run(self) -> None:
        """Serve until cancelled."""
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._prepared = PreparedClaims(self._directory / "prepared.json")
        answers = {
            f"{_DRA}/NodePrepareResources": self._prepare,
            f"{_DRA}/NodeUnprepareResources": self._unprepare,
        }
        registration = {
            f"{_REGISTRATION}/GetInfo": self._info,
            f"{_REGISTRATION}/NotifyRegistrationStatus": self._on_registration,
        }
        async with AsyncExitStack() as closing:
            await closing.enter_async_context(_serving(self._endpoint, answers))
            # Last, because the kubelet calls as soon as it sees this socket.
            await closing.enter_async_context(_serving(self._registration, registration))
            await asyncio.Event().wait()

    async def _info(self, _request: bytes) -> bytes:
        return (
            protobuf.string(_INFO_TYPE, PLUGIN_TYPE)
            + protobuf.string(_INFO_NAME, self._driver)
            + protobuf.string(_INFO_ENDPOINT, str(self._endpoint))
            + protobuf.string(_INFO_VERSIONS, SERVICE)
        )

    async def _on_registration(self, request: bytes) -> bytes:
        self.registered = protobuf.flag(request, _STATUS_REGISTERED)
        if self.registered:
            _log.info("dra_driver_registered", driver=self._driver)
        else:
            error = protobuf.text(request, _STATUS_ERROR)
            _log.warning("dra_driver_refused", driver=self._driver, error=error)
        return b""

    async def _prepare(self, request: bytes) -> bytes:
        response = b""
        for claim in protobuf.fields(request, _CLAIMS):
            uid = protobuf.text(claim, _CLAIM_UID)
            namespace, name = (protobuf.text(claim, number) for number in (_CLAIM_NAMESPACE, _CLAIM_NAME))
            try:
                async with self._preparing:
                    answer = await self._prepare_claim(namespace, name, uid)
            except GpufleetError as error:
                _log.warning("claim_not_prepared", namespace=namespace, claim=name, error=str(error))
                answer = protobuf.string(_PREPARED_ERROR, str(error))
            response += protobuf.entry(_CLAIMS, uid, answer)
        return response

    async def _unprepare(self, request: bytes) -> bytes:
        assert self._prepared is not None
        response = b""
        for claim in protobuf.fields(request, _CLAIMS):
            uid = protobuf.text(claim, _CLAIM_UID)
            self._prepared.drop(uid)
            response += protobuf.entry(_CLAIMS, uid, b"")
        return response

    async def _prepare_claim(self, namespace: str, name: str, uid: str) -> bytes:
        assert self._prepared is not None
        claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)
        if claim.metadata.uid != uid:
            raise NotPrepared(f"ResourceClaim {namespace}/{name} was deleted and created again")
        results = self._results(claim)
        if not results:
            raise NotPrepared(
                f"ResourceClaim {namespace}/{name} has no devices of {self._driver} on this node"
            )
        known = self._devices()
        if unknown := [each.device for each in results if each.device not in known]:
            raise NotPrepared(f"this node has no device {', '.join(unknown)}")
        own = tuple(each.device for each in results if not each.admin_access)
        await self._check_unused(own, uid)
        self._prepared.put(uid, PreparedClaim(namespace, name, own))
        return b"".join(
            protobuf.message(
                _PREPARED_DEVICES,
                protobuf.string(_DEVICE_REQUESTS, each.request)
                + protobuf.string(_DEVICE_POOL, each.pool)
                + protobuf.string(_DEVICE_NAME, each.device)
                + protobuf.string(_DEVICE_CDI, known[each.device].cdi),
            )
            for each in results
        )

    async def _check_unused(self, devices: tuple[str, ...], uid: str) -> None:
        """Raise NotPrepared if another claim is prepared with one of the devices and still has it."""
        assert self._prepared is not None
        for other, claim in self._prepared.users_of(devices, apart_from=uid).items():
            if await self._still_has(other, claim, devices):
                both = ", ".join(sorted(set(devices) & set(claim.devices)))
                raise NotPrepared(f"{both} is in use by ResourceClaim {claim.namespace}/{claim.name}")
            self._prepared.drop(other)

    async def _still_has(self, uid: str, prepared: PreparedClaim, devices: tuple[str, ...]) -> bool:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, prepared.name, prepared.namespace)
        except ObjectNotFound:
            return False
        if claim.metadata.uid != uid:
            return False
        return any(each.device in devices for each in self._results(claim) if not each.admin_access)

    def _results(self, claim: ResourceClaim) -> list[AllocatedDevice]:
        allocation = claim.status.allocation
        found = allocation.devices.results if allocation is not None else ()
        return [each for each in found if (each.driver, each.pool) == (self._driver, self._node)]


class _Service:
    """Methods of a gRPC service, by path, that take and return bytes."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def __mapping__(self) -> dict[str, Handler]:
        return {
            path: Handler(_method(answer), Cardinality.UNARY_UNARY, bytes, bytes)
            for path, answer in self._answers.items()
        }


def _method(answer: Answer) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
    async def method(stream: Stream[Any, Any]) -> None:
        request = await stream.recv_message()
        await stream.send_message(await answer(request or b""))

    return method


@asynccontextmanager
async def _serving(path: Path, answers: Mapping[str, Answer]) -> AsyncIterator[None]:
    """Serve on a unix socket; an old socket of that name is replaced."""
    server = Server([_Service(answers)], codec=RawCodec())
    await server.start(path=str(path))
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
        server.close()
        await server.wait_closed()
