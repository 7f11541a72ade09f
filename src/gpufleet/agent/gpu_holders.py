"""Who holds which GPU of this node: leases, allocations on pods, and the kubelet's device manager.

Ten thousand agents that each watched all leases would cost the API server more than everything else.
So an agent watches the pods of its own node (one watch, which the server indexes as it does for
kubelets) and reads the leases `gpu-{node}-{id}` by name: when a pod with GPUs comes or goes, while a
lease names a pod that is not here, and every couple of minutes. Pods that got GPUs from a device plugin
are told by the kubelet (see `kubelet`), which is asked at the same times; while it is away, as during its own
restart, its last word counts for the pods that are still there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import LEASES, PODS, CacheChange, KubeClient, Reflector, Selection
from gpufleet.kubernetes.allocation import allocated_gpus
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.client.errors import KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.leases import lease_name
from gpufleet.kubernetes.objects import Pod
from gpufleet.model.device import Device
from gpufleet.runtime.logs import get_logger

DISPUTED = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between looks at leases whose pod is not here: it is about to come, or the lease about to go."""

PluginDevices = Mapping[tuple[str, str], Collection[str]]
"""Ids of the devices that plugins gave out, by namespace and name of the pod."""
PluginHolders = Callable[[], Awaitable[PluginDevices]]
"""Asks the kubelet."""

_log = get_logger("agent")


class GpuHolders:
    """Keeps who holds each GPU; `changed` is called when that is not what it was."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        lease_namespace: str,
        devices: Callable[[], Sequence[Device]],
        plugin: PluginHolders | None = None,
        check: float = 120.0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.ready = False
        """Whether leases were looked at since the devices are known."""
        self.looks = 0
        """How often leases and the kubelet's word were read."""
        self.pods: Reflector[Pod] = Reflector(client, PODS, Selection(fields=f"spec.nodeName={node}"))
        self.pods.subscribe(self._on_pods)
        self._client = client
        self._node = node
        self._namespace = lease_namespace
        self._devices = devices
        self._plugin = plugin
        self._check = check
        self._changed = changed
        self._leased: dict[int, tuple[str, ...]] = {}
        self._plugged: PluginDevices = {}
        self._kubelet_silence = ""
        self._look = asyncio.Event()
        self._told: dict[int, frozenset[str]] | None = None

    def holders(self) -> dict[int, frozenset[str]]:
        """UIDs of pods by GPU."""
        found: dict[int, set[str]] = {}
        plugged = by_gpu(self._plugged, self.pods.cache, self._devices())
        sources = (self._leased, plugged, allocations(self.pods.cache, self._node))
        for source in sources:
            for gpu, uids in source.items():
                found.setdefault(gpu, set()).update(uids)
        return {gpu: frozenset(uids) for gpu, uids in found.items()}

    def uids(self) -> frozenset[str]:
        """The pods that hold any GPU."""
        return frozenset(uid for uids in self.holders().values() for uid in uids)

    def check_now(self) -> None:
        """Read leases and the kubelet's word again."""
        self._look.set()

    async def run(self) -> None:
        """Keep the book until cancelled; `pods.run` has to run beside it."""
        await self.pods.synced()
        tries = 0
        while True:
            self._look.clear()
            await self._read()
            disputed = tries < len(DISPUTED) and self._disputed()
            wait = DISPUTED[tries] if disputed else self._check
            tries = tries + 1 if disputed else 0
            try:
                async with asyncio.timeout(wait):
                    await self._look.wait()
                tries = 0
            except TimeoutError:
                pass

    async def _read(self) -> None:
        self.looks += 1
        await self._read_leases()
        await self._ask_kubelet()
        if not self.ready and self._devices():
            self.ready = True
            self._changed()
        self._tell()

    async def _read_leases(self) -> None:
        for device in self._devices():
            try:
                lease = await self._client.get(LEASES, lease_name(self._node, device.index), self._namespace)
            except ObjectNotFound:
                self._leased.pop(device.index, None)
            except (KubernetesUnavailable, KubernetesRefused) as error:
                _log.warning("leases not read", node=self._node, error=str(error))
                return
            else:
                uids = (lease.spec.holder_identity or "").split(",")
                self._leased[device.index] = tuple(uid for uid in uids if uid)

    async def _ask_kubelet(self) -> None:
        if self._plugin is None:
            return
        try:
            self._plugged = await self._plugin()
        except KubernetesUnavailable as error:
            if str(error) != self._kubelet_silence:
                _log.warning("GPUs of device plugins not told", node=self._node, error=str(error))
            self._kubelet_silence = str(error)
            return
        if self._kubelet_silence:
            _log.info("GPUs of device plugins told again", node=self._node)
        self._kubelet_silence = ""

    def _disputed(self) -> bool:
        """Whether a lease names a pod that is not on this node, or is over."""
        here = {pod.metadata.uid for pod in self.pods.cache if not pod.finished}
        return any(uid not in here for uids in self._leased.values() for uid in uids)

    def _on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        if any(_of_interest(change) for change in changes):
            self._look.set()
            self._tell()

    def _tell(self) -> None:
        holders = self.holders()
        if holders != self._told:
            self._told = holders
            self._changed()


def allocations(pods: Iterable[Pod], node: str) -> dict[int, tuple[str, ...]]:
    """The GPUs that the scheduler wrote on the live pods of this node, by id."""
    found: dict[int, tuple[str, ...]] = {}
    for pod in pods:
        if pod.finished or pod.spec.node_name != node:
            continue
        for gpu in allocated_gpus(pod):
            found[gpu] = (*found.get(gpu, ()), pod.metadata.uid)
    return found


def by_gpu(
    plugged: PluginDevices, pods: Iterable[Pod], devices: Iterable[Device]
) -> dict[int, tuple[str, ...]]:
    """The live pods of those devices by GPU; ids are UUIDs (of GPUs and MIG instances) or PCI addresses (AMD)."""
    gpus: dict[str, int] = {}
    for device in devices:
        known = (device.uuid, device.pci_bus_id, *(part.uuid for part in device.mig))
        gpus |= {id: device.index for id in known if id}
    found: dict[int, tuple[str, ...]] = {}
    for pod in pods:
        ids = () if pod.finished else plugged.get((pod.metadata.namespace, pod.metadata.name), ())
        # The device plugin names a replica of a shared GPU `UUID::number`.
        for gpu in {gpus[gpu] for gpu in (id.partition("::")[0] for id in ids) if gpu in gpus}:
            found[gpu] = (*found.get(gpu, ()), pod.metadata.uid)
    return found


def _of_interest(change: CacheChange[Pod]) -> bool:
    """Whether GPUs may have got another holder: most pods have none, and kubelets write much that says nothing of it."""
    before, after = change.before, change.after
    if not any(_may_hold(pod) for pod in (before, after) if pod is not None):
        return False
    if before is None or after is None or before.status.phase != after.status.phase:
        return True  # a device plugin's GPUs are given out between the binding and Running
    return before.metadata.annotations.get(ALLOCATED) != after.metadata.annotations.get(ALLOCATED)


def _may_hold(pod: Pod) -> bool:
    """Whether the pod has a claim, an allocation, or asks for devices, whose names alone have a domain."""
    if not pod.metadata.annotations.keys().isdisjoint((ALLOCATED, CLAIM)):
        return True
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(
        "/" in name for each in containers for name in (*each.resources.limits, *each.resources.requests)
    )
