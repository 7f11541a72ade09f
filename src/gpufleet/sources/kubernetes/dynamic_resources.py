"""Find the GPUs that pods hold by ResourceClaims (dynamic resource allocation).

A pod holds the devices of a claim while the claim is allocated and reserved for the pod. Pods that share a claim share
its GPUs in equal parts. Claims that kube-scheduler makes for extended resources (`extendedResourceClaimStatus`) are
claims like others. A node without an agent has the GPUs that its driver publishes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import structs

from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.claimed_gpus import PublishedDevices, claimed_gpus, find_gpu, number, text
from gpufleet.kubernetes.crds.gpu_node_status import (
    DeviceStatus,
    GpuNodeStatus,
    MigInstanceStatus,
    NodeGpus,
    NodeGpusSpec,
)
from gpufleet.kubernetes.gpu_requests import profile_share
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import parse_quantity
from gpufleet.kubernetes.resource_claims import GPU_DRIVERS, Device, ResourceClaim, ResourceSlice, claim_names

_VENDORS = {"gpu.nvidia.com": "nvidia", "gpu.amd.com": "amd", "gpu.intel.com": "intel"}
_PARTS = ("mig", "amdgpu-partition", "vfio")
"""Types of devices that are part of a GPU, or another view of it."""


class HeldDevice(NamedTuple):
    """A GPU of a claim, or a part of one; -1 if it is not known which GPU."""

    gpu: int
    share: float


class DynamicResources:
    """Claims and published devices; every change returns what it affects."""

    def __init__(self, reported: Callable[[str], GpuNodeStatus | None]) -> None:
        """`reported` returns what the agent of a node reports."""
        self._reported = reported
        self._published = PublishedDevices()
        self._claims: dict[tuple[str, str], ResourceClaim] = {}

    def on_slices(self, changes: Iterable[CacheChange[ResourceSlice]]) -> set[str]:
        """Store changed slices; return the nodes whose devices may have changed."""
        nodes: set[str] = set()
        for change in changes:
            if change.object.spec.driver in GPU_DRIVERS:
                apply = self._published.drop if change.after is None else self._published.put
                nodes |= apply(change.object)
        return nodes

    def on_claims(self, changes: Iterable[CacheChange[ResourceClaim]]) -> set[tuple[str, str]]:
        """Store changed claims; return the namespaces and names of the pods that use them or did."""
        pods: set[tuple[str, str]] = set()
        for change in changes:
            meta = change.object.metadata
            if change.after is None:
                self._claims.pop((meta.namespace, meta.name), None)
            else:
                self._claims[meta.namespace, meta.name] = change.after
            for state in (change.before, change.after):
                for user in state.status.reserved_for if state is not None else ():
                    pods.add((meta.namespace, user.name))
        return pods

    def published_on(self, node: str) -> GpuNodeStatus | None:
        """Return the GPUs that drivers publish for a node, in the form of an agent's report; None if there are none."""
        devices = tuple(self._published.on_node(node))
        whole = [each for each in devices if text(each.device, "type") not in _PARTS]
        if not whole:
            return None
        gpus = tuple(_gpu(at, each.name.driver, each.device) for at, each in enumerate(whole))
        parts: dict[int, list[MigInstanceStatus]] = {}
        for each in devices:
            if text(each.device, "type") == "mig" and (found := find_gpu(each, gpus)) is not None:
                of_gpu = parts.setdefault(found.gpu, [])
                of_gpu.append(MigInstanceStatus(len(of_gpu), found.profile, text(each.device, "uuid")))
        status = NodeGpus(
            tuple(_with_parts(gpu, parts.get(gpu.id, ())) for gpu in gpus), len(gpus), len(gpus)
        )
        return GpuNodeStatus(spec=NodeGpusSpec(node), status=status)

    def held_by(self, pod: Pod) -> tuple[HeldDevice, ...]:
        """Return the GPUs that a pod holds by its claims."""
        found: list[HeldDevice] = []
        for name in claim_names(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            users = claim.pod_uids if claim is not None and claim.status.reserved_for else ()
            if claim is not None and pod.metadata.uid in users:
                found += (HeldDevice(gpu, share / len(users)) for gpu, share in self._gpus_of(claim))
        return tuple(found)

    def _gpus_of(self, claim: ResourceClaim) -> list[HeldDevice]:
        known = claimed_gpus(claim, self._published, self.devices_of)
        found = [
            HeldDevice(each.gpu, each.milli / 1000 if each.milli else profile_share(each.profile))
            for each in known
        ]
        ours = sum(each.driver in GPU_DRIVERS for each in claim.devices)
        return found + [HeldDevice(-1, 1.0)] * (ours - len(known))

    def devices_of(self, node: str) -> Sequence[DeviceStatus]:
        """Return the GPUs of a node: those that its agent reports, or else those that its driver publishes."""
        report = self._reported(node) or self.published_on(node)
        return report.status.devices if report is not None else ()


def _gpu(at: int, driver: str, device: Device) -> DeviceStatus:
    index = number(device, "index")
    memory = next((each for name, each in device.capacity.items() if name.endswith("memory")), None)
    return DeviceStatus(
        id=at if index is None else index,
        health="Healthy",
        uuid=text(device, "uuid"),
        vendor=_VENDORS.get(driver),  # type: ignore[arg-type]
        model=text(device, "productName") or text(device, "model"),
        memory_mib=int(parse_quantity(memory.value) / 2**20) if memory else None,
        pci_bus_id=text(device, "pciBusID") or text(device, "pcieBusID"),
    )


def _with_parts(gpu: DeviceStatus, parts: Sequence[MigInstanceStatus]) -> DeviceStatus:
    return structs.replace(gpu, mig_instances=tuple(parts)) if parts else gpu
