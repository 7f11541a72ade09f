"""Find out which pods hold which GPUs of this node.

There are three sources: Leases, allocation annotations on pods, and the kubelet for GPUs of device plugins and of
ResourceClaims. Which GPU a device of a ResourceClaim is, its driver's ResourceSlices of this node say.

Ten thousand agents that each watch all Leases would be the largest load on the API server. So an agent
watches only the pods of its own node, which the API server indexes for kubelets, and reads the Leases of its
GPUs by name: when a pod with GPUs appears or ends, while a Lease names a pod that is not here, and every few
minutes. The kubelet is called at the same times, and until it names the devices of every pod that requests GPUs:
it allocates them when it admits the pod, some time before the containers run. While it is unavailable, for example during a restart, its
last answer counts for the pods that still exist.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import (
    LEASES,
    PODS,
    RESOURCE_SLICES,
    CacheChange,
    KubeClient,
    Reflector,
    Selection,
)
from gpufleet.kubernetes.allocation import allocated_gpus
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.claimed_gpus import PublishedDevices, find_gpu
from gpufleet.kubernetes.client.errors import KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, MigInstanceStatus
from gpufleet.kubernetes.gpu_requests import gpu_request
from gpufleet.kubernetes.leases import lease_name
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import GPU_DRIVERS
from gpufleet.model.device import Device
from gpufleet.runtime.logs import get_logger

UNMATCHED_BACKOFF = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between reads while a Lease names a pod that is not here, because the pod is about to appear or the Lease
to go, and while the kubelet does not list a pod that requests GPUs."""

PluginDevices = Mapping[tuple[str, str], Collection[str]]
"""Ids of the devices that plugins and drivers allocated, by namespace and name of the pod."""

_log = get_logger("agent")


LEASE_CHECK_S = 120.0
"""Seconds between reads of this node's Leases without a change of pods, for Leases that change without their pod."""


class GpuHolders:
    """Tracks the holders of each GPU; calls `on_change` when they change."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        lease_namespace: str,
        devices: Callable[[], Sequence[Device]],
        plugin_devices: Callable[[], Awaitable[PluginDevices]] | None = None,
        check: float = LEASE_CHECK_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.ready = False
        """Whether Leases were read since the devices are known."""
        self.reads = 0
        """How often Leases and the kubelet were read."""
        self.pods: Reflector[Pod] = Reflector(client, PODS, Selection(fields=f"spec.nodeName={node}"))
        self.pods.subscribe(self._on_pods)
        self._client = client
        self._node = node
        self._namespace = lease_namespace
        self._devices = devices
        self._plugin_devices = plugin_devices
        self._check = check
        self._on_change = on_change
        self._leased: dict[int, tuple[str, ...]] = {}
        self._listed: PluginDevices = {}
        self._dynamic: dict[str, int] = {}
        """The GPU of each device in the ResourceSlices of this node, by `driver/pool/device`."""
        self._kubelet_error = ""
        self._wake = asyncio.Event()
        self._last: dict[int, frozenset[str]] | None = None

    def holders(self) -> dict[int, frozenset[str]]:
        """Return the UIDs of pods by GPU."""
        found: dict[int, set[str]] = {}
        plugged = by_gpu(self._listed, self.pods.cache, self._devices(), self._dynamic)
        sources = (self._leased, plugged, allocations(self.pods.cache, self._node))
        for source in sources:
            for gpu, uids in source.items():
                found.setdefault(gpu, set()).update(uids)
        return {gpu: frozenset(uids) for gpu, uids in found.items()}

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that hold a GPU."""
        return frozenset(uid for uids in self.holders().values() for uid in uids)

    def check_now(self) -> None:
        """Read Leases and the kubelet again soon."""
        self._wake.set()

    async def run(self) -> None:
        """Track holders until cancelled; `pods.run` must run as well."""
        await self.pods.synced()
        tries = 0
        while True:
            self._wake.clear()
            await self._read()
            unmatched = tries < len(UNMATCHED_BACKOFF) and self._unmatched()
            wait = UNMATCHED_BACKOFF[tries] if unmatched else self._check
            tries = tries + 1 if unmatched else 0
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
                tries = 0
            except TimeoutError:
                pass

    async def _read(self) -> None:
        self.reads += 1
        await self._read_leases()
        await self._read_kubelet()
        if any(_is_gpu(id) and id not in self._dynamic for ids in self._listed.values() for id in ids):
            await self._read_slices()
        if not self.ready and self._devices():
            self.ready = True
            self._on_change()
        self._notify()

    async def _read_leases(self) -> None:
        for device in self._devices():
            try:
                lease = await self._client.get(LEASES, lease_name(self._node, device.index), self._namespace)
            except ObjectNotFound:
                self._leased.pop(device.index, None)
            except (KubernetesUnavailable, KubernetesRefused) as error:
                _log.warning("leases_not_read", node=self._node, error=str(error))
                return
            else:
                uids = (lease.spec.holder_identity or "").split(",")
                self._leased[device.index] = tuple(uid for uid in uids if uid)

    async def _read_kubelet(self) -> None:
        if self._plugin_devices is None:
            return
        try:
            self._listed = await self._plugin_devices()
        except KubernetesUnavailable as error:
            if str(error) != self._kubelet_error:
                _log.warning("plugin_devices_not_read", node=self._node, error=str(error))
            self._kubelet_error = str(error)
            return
        if self._kubelet_error:
            _log.info("plugin_devices_read_again", node=self._node)
        self._kubelet_error = ""

    async def _read_slices(self) -> None:
        published = PublishedDevices()
        try:
            page = await self._client.list(RESOURCE_SLICES, Selection(fields=f"spec.nodeName={self._node}"))
        except (KubernetesUnavailable, KubernetesRefused) as error:
            _log.warning("resource_slices_not_read", node=self._node, error=str(error))
            return
        for item in page.items:
            published.put(item)
        devices = [_status(device) for device in self._devices()]
        self._dynamic = {
            "/".join(each.name): found.gpu
            for each in published
            if (found := find_gpu(each, devices)) is not None
        }

    def _unmatched(self) -> bool:
        """Return whether a Lease names a pod that is not running here, or the kubelet lists no devices of a pod."""
        here = [pod for pod in self.pods.cache if not pod.finished]
        uids = {pod.metadata.uid for pod in here}
        if any(uid not in uids for holders in self._leased.values() for uid in holders):
            return True
        return self._plugin_devices is not None and any(
            (pod.metadata.namespace, pod.metadata.name) not in self._listed
            and (pod.spec.resource_claims or gpu_request(pod).gpus)
            for pod in here
        )

    def _on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        if any(_may_change_holders(change) for change in changes):
            self._wake.set()
            self._notify()

    def _notify(self) -> None:
        holders = self.holders()
        if holders != self._last:
            self._last = holders
            self._on_change()


def allocations(pods: Iterable[Pod], node: str) -> dict[int, tuple[str, ...]]:
    """Return the pods on this node by the GPUs that the scheduler allocated to them."""
    found: dict[int, tuple[str, ...]] = {}
    for pod in pods:
        if pod.finished or pod.spec.node_name != node:
            continue
        for gpu in allocated_gpus(pod):
            found[gpu] = (*found.get(gpu, ()), pod.metadata.uid)
    return found


def by_gpu(
    plugin_devices: PluginDevices,
    pods: Iterable[Pod],
    devices: Iterable[Device],
    dynamic: Mapping[str, int] = MappingProxyType({}),
) -> dict[int, tuple[str, ...]]:
    """Return pods by GPU. Plugins name devices by UUID, PCI address (AMD) or `nvidia0` (GKE)."""
    gpus: dict[str, int] = {**dynamic}
    for device in devices:
        minor = device.index if device.minor is None else device.minor
        known = (device.uuid, device.pci_bus_id, *(part.uuid for part in device.mig), f"nvidia{minor}")
        gpus |= {id: device.index for id in known if id}
    found: dict[int, tuple[str, ...]] = {}
    for pod in pods:
        ids = () if pod.finished else plugin_devices.get((pod.metadata.namespace, pod.metadata.name), ())
        for gpu in sorted({gpu for id in ids if (gpu := _gpu_of(id, gpus)) is not None}):
            found[gpu] = (*found.get(gpu, ()), pod.metadata.uid)
    return found


def _gpu_of(id: str, gpus: Mapping[str, int]) -> int | None:
    """Return the GPU of a device, a replica of it (`UUID::1`; HAMi: `UUID-1`) or a part of it (GKE: `nvidia0/gi1`)."""
    names = (id, id.partition("::")[0], id.rpartition("-")[0], id.partition("/")[0])
    return next((gpus[name] for name in names if name in gpus), None)


def _is_gpu(id: str) -> bool:
    """Return whether an id is of a device that a driver of GPUs allocated by a ResourceClaim."""
    return id.count("/") == 2 and id.partition("/")[0] in GPU_DRIVERS


def _status(device: Device) -> DeviceStatus:
    """Return what identifies a GPU."""
    parts = tuple(MigInstanceStatus(part.index, part.profile, part.uuid) for part in device.mig)
    return DeviceStatus(
        device.index, uuid=device.uuid, pci_bus_id=device.pci_bus_id or "", mig_instances=parts
    )


def _may_change_holders(change: CacheChange[Pod]) -> bool:
    """Return whether holders may have changed: most pods hold no GPU, and most updates by kubelets are irrelevant."""
    before, after = change.before, change.after
    if not any(_may_hold(pod) for pod in (before, after) if pod is not None):
        return False
    if before is None or after is None or before.status.phase != after.status.phase:
        return True  # device plugins allocate between binding and Running
    return before.metadata.annotations.get(ALLOCATED) != after.metadata.annotations.get(ALLOCATED)


def _may_hold(pod: Pod) -> bool:
    """Return whether the pod has a claim of any kind, an allocation or requests devices (resource names with a domain)."""
    if pod.spec.resource_claims or not pod.metadata.annotations.keys().isdisjoint((ALLOCATED, CLAIM)):
        return True
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(
        "/" in name for each in containers for name in (*each.resources.limits, *each.resources.requests)
    )
