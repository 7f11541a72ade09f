"""The GPUs that ResourceClaims have, those of gpufleet and those that kube-scheduler allocated for others.

The allocation in a claim's status is authoritative. A claim that was made for a pod with a GpuClaim counts as that
pod's; every other claim is a holder of its own. An allocation keeps its GPUs while the driver's slices or the agent's
report are missing, for example during an upgrade.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.kubernetes.claimed_gpus import (
    WHOLE_MILLI,
    ClaimedGpu,
    PublishedDevice,
    PublishedDevices,
    claimed_gpus,
    find_gpu,
    text,
)
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import (
    DEVICE_CLASS,
    GPU_DRIVERS,
    OWNER_TAINT,
    POD_CLAIM,
    ResourceClaim,
    ResourceSlice,
)
from gpufleet.scheduler.state.indexes import Key

Held = dict[str, dict[int, LeaseHolder]]
"""What a holder has, by node and GPU id."""

_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class HoldingClaim:
    """A claim with the GPUs of its allocation."""

    object: ResourceClaim
    holder: str
    gpus: tuple[ClaimedGpu, ...] = ()


class ClaimAllocations:
    """ResourceClaims and ResourceSlices; `gpus_of` returns the reported GPUs of a node."""

    def __init__(self, gpus_of: Callable[[str], Sequence[DeviceStatus]]) -> None:
        self._gpus_of = gpus_of
        self.published = PublishedDevices()
        self._claims: dict[Key, HoldingClaim] = {}
        self._by_holder: dict[str, set[Key]] = {}
        self._by_node: dict[str, set[Key]] = {}
        self._devices: dict[str, dict[tuple[int, str], PublishedDevice]] = {}
        self._unresolved: set[Key] = set()
        """Claims with devices that are no GPUs as far as known."""
        self._nodes: frozenset[str] | None = None

    def __iter__(self) -> Iterator[HoldingClaim]:
        return iter(self._claims.values())

    def get(self, key: Key) -> HoldingClaim | None:
        """Return a claim by namespace and name."""
        return self._claims.get(key)

    def of_pod(self, pod: Pod) -> ResourceClaim | None:
        """Return the claim that kube-controller-manager made for a pod with a GpuClaim, if it exists.

        Anybody may create a claim that names a pod as its owner, but not write that claim into the pod's status.
        """
        name = next(
            (
                each.resource_claim_name
                for each in pod.status.resource_claim_statuses
                if each.name == POD_CLAIM
            ),
            "",
        )
        known = self._claims.get((pod.metadata.namespace, name or ""))
        return known.object if known is not None and known.holder == pod.metadata.uid else None

    def held(self, holder: str) -> Held:
        """Return the GPUs that the claims of a holder have."""
        held: Held = {}
        for key in self._by_holder.get(holder, ()):
            known = self._claims[key]
            for gpu in known.gpus:
                gpus = held.setdefault(gpu.node, {})
                gpus[gpu.gpu] = _merged(gpus.get(gpu.gpu), _entry(known, gpu))
        return held

    def holders(self, node: str, gpu: int) -> dict[str, LeaseHolder]:
        """Return what each holder has of a GPU."""
        found: dict[str, LeaseHolder] = {}
        for key in self._by_node.get(node, ()):
            known = self._claims[key]
            for each in known.gpus:
                if (each.node, each.gpu) == (node, gpu):
                    found[known.holder] = _merged(found.get(known.holder), _entry(known, each))
        return found

    # -- changes: each returns the (holder, node) pairs whose GPUs may have changed ---------

    def put(self, claim: ResourceClaim) -> set[tuple[str, str]]:
        """Store a claim."""
        key = (claim.metadata.namespace, claim.metadata.name)
        before = self._claims.get(key)
        changed = self.drop(key)
        holder = _holder(claim)
        gpus = tuple(claimed_gpus(claim, self.published, self._gpus_of))
        if before is not None and before.object.devices == claim.devices and len(gpus) < len(before.gpus):
            gpus = before.gpus
        self._claims[key] = HoldingClaim(claim, holder, gpus)
        self._by_holder.setdefault(holder, set()).add(key)
        if len(gpus) < len(claim.devices):
            self._unresolved.add(key)
        for gpu in gpus:
            self._by_node.setdefault(gpu.node, set()).add(key)
            changed.add((holder, gpu.node))
        return changed

    def drop(self, key: Key) -> set[tuple[str, str]]:
        """Remove a claim."""
        known = self._claims.pop(key, None)
        if known is None:
            return set()
        self._unresolved.discard(key)
        keys = self._by_holder[known.holder]
        keys.discard(key)
        if not keys:
            del self._by_holder[known.holder]
        for gpu in known.gpus:
            names = self._by_node.get(gpu.node, set())
            names.discard(key)
            if not names:
                self._by_node.pop(gpu.node, None)
        return {(known.holder, gpu.node) for gpu in known.gpus}

    def put_slice(self, item: ResourceSlice) -> set[str]:
        """Store a slice; return the nodes whose devices may have changed."""
        return self._republished(self.published.put(item))

    def drop_slice(self, item: ResourceSlice) -> set[str]:
        """Remove a slice; return the nodes whose devices may have changed."""
        return self._republished(self.published.drop(item))

    def _republished(self, nodes: set[str]) -> set[str]:
        for node in nodes:
            self._forget(node)
        return nodes

    def node_changed(self, node: str) -> set[tuple[str, str]]:
        """Match the devices of a node again: its slices or its report have changed."""
        self._forget(node)
        changed: set[tuple[str, str]] = set()
        for key in self._by_node.get(node, set()) | self._unresolved:
            changed |= self.put(self._claims[key].object)
        return changed

    def _forget(self, node: str) -> None:
        self._devices.pop(node, None)
        self._nodes = None

    # -- devices ----------------------------------------------------------------------------

    def devices_on(self, node: str) -> dict[tuple[int, str], PublishedDevice]:
        """Return the devices of a node by GPU id and MIG instance; the instance of a whole GPU is empty."""
        found = self._devices.get(node)
        if found is None:
            found = self._devices[node] = {}
            gpus = self._gpus_of(node)
            for device in self.published.on_node(node):
                if device.name.driver not in GPU_DRIVERS or text(device.device, "type") == "vfio":
                    continue
                match = find_gpu(device, gpus)
                if match is not None and bool(match.instance) == bool(match.profile):
                    found.setdefault((match.gpu, match.instance), device)
        return found

    def nodes(self) -> frozenset[str]:
        """Return the nodes of which every GPU or MIG instance is published by a driver."""
        if self._nodes is None:
            self._nodes = frozenset(filter(self._is_published, self.published.nodes()))
        return self._nodes

    def is_blocked(self, node: str, gpu: int) -> bool:
        """Return whether a device of the GPU has a taint that keeps it from new claims."""
        return any(
            taint.effect in _BLOCKING and taint.key != OWNER_TAINT
            for (at, _), device in self.devices_on(node).items()
            if at == gpu
            for taint in device.device.taints
        )

    def _is_published(self, node: str) -> bool:
        devices = self.devices_on(node)
        names = (
            name
            for gpu in self._gpus_of(node)
            for name in ([(gpu.id, str(each.id)) for each in gpu.mig_instances] or [(gpu.id, "")])
        )
        return bool(devices) and all(name in devices for name in names)


def _holder(claim: ResourceClaim) -> str:
    """Return the pod's UID for a claim of ours, else a name that no pod has."""
    owner = next((each.uid for each in claim.metadata.owner_references if each.kind == "Pod"), "")
    ours = DEVICE_CLASS in claim.class_names
    return owner if ours and owner else f"claim {claim.metadata.uid}"


def _entry(known: HoldingClaim, gpu: ClaimedGpu) -> LeaseHolder:
    meta = known.object.metadata
    # A partition that is not in the report: nothing else of its GPU can be given out.
    milli = WHOLE_MILLI if gpu.profile and not gpu.instance else gpu.milli
    instances = (gpu.instance,) if gpu.instance else ()
    return LeaseHolder(meta.namespace, "", meta.name, milli, instances, meta.uid)


def _merged(known: LeaseHolder | None, more: LeaseHolder) -> LeaseHolder:
    """Return two parts of one GPU as one."""
    if known is None:
        return more
    return LeaseHolder(
        more.namespace,
        more.pod,
        more.claim,
        min(known.milli + more.milli, WHOLE_MILLI),
        tuple(dict.fromkeys((*known.instances, *more.instances))),
        more.stamp,
    )
