"""The GPUs of a node as devices of a ResourceSlice.

A GPU with MIG instances is published as its instances, since whoever has the whole GPU has them too. A GPU that is
not healthy or that an operator has cordoned carries a taint, which keeps new claims away and running pods alone.

The container runtime gets a device by the name that the vendor's toolkit gives it in its own CDI spec
(`nvidia-ctk cdi generate`, `amd-ctk cdi generate`), so the agent itself writes no CDI spec.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.agent.monitor import Observation
from gpufleet.gpus.health import HealthVerdict
from gpufleet.model.device import Device, MigInstance, Vendor
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.node import Health

UNHEALTHY_TAINT = "gpu.scheduling/unhealthy"
CORDONED_TAINT = "gpu.scheduling/cordoned"
_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
"""The standard name, with which a claim can require that a GPU and a network card share a PCIe root."""


@dataclass(frozen=True)
class DraDevice:
    """A device of the driver."""

    name: str
    cdi: str
    """Its name in the vendor's CDI spec."""
    attributes: Mapping[str, str | int]
    memory_bytes: int | None = None
    taints: Mapping[str, str] | None = None
    """Values by key; all have the effect NoSchedule."""

    def manifest(self) -> dict[str, Any]:
        """Return its entry in a ResourceSlice."""
        entry: dict[str, Any] = {
            "name": self.name,
            "attributes": {
                key: {"int" if isinstance(value, int) else "string": value}
                for key, value in self.attributes.items()
            },
        }
        if self.memory_bytes:
            entry["capacity"] = {"memory": {"value": str(self.memory_bytes)}}
        if self.taints:
            entry["taints"] = [
                {"key": key, "value": value, "effect": "NoSchedule"} for key, value in self.taints.items()
            ]
        return entry


def dra_devices(observation: Observation, cordoned: Collection[int] = ()) -> tuple[DraDevice, ...]:
    """Return the devices of the node; `cordoned` are the ids of GPUs that an operator has cordoned."""
    return tuple(each for gpu in observation.devices for each in _devices(gpu, observation, cordoned))


def _devices(gpu: Device, observation: Observation, cordoned: Collection[int]) -> Iterator[DraDevice]:
    taints = _taints(observation.verdicts.get(gpu.uuid), gpu.index in cordoned)
    position = observation.positions.get(gpu.uuid)
    common: dict[str, str | int | None] = {
        "index": gpu.index,
        "vendor": gpu.vendor.value,
        "model": canonical_model(gpu.model or ""),
        _PCI_BUS_ID: gpu.pci_bus_id,
        "numaNode": gpu.numa_node,
        "island": position.island if position else None,
    }
    if not gpu.mig:
        whole = _known({"type": "gpu", "uuid": gpu.uuid, **common})
        yield DraDevice(f"gpu-{gpu.index}", _cdi(gpu), whole, gpu.memory_bytes, taints)
    for part in gpu.mig:
        attributes = _known(
            {"type": "mig", "uuid": part.uuid, "parentUUID": gpu.uuid, "profile": part.profile, **common}
        )
        name = f"gpu-{gpu.index}-mig-{part.index}"
        yield DraDevice(name, _cdi(gpu, part), attributes, part.memory_bytes, taints)


def _cdi(gpu: Device, part: MigInstance | None = None) -> str:
    """Return the name of a GPU in its vendor's CDI spec: NVIDIA names UUIDs, AMD numbers."""
    if gpu.vendor is Vendor.AMD:
        return f"amd.com/gpu={gpu.index}"
    return f"nvidia.com/gpu={part.uuid if part else gpu.uuid}"


def _taints(verdict: HealthVerdict | None, cordoned: bool) -> dict[str, str] | None:
    health = verdict.health if verdict is not None else Health.UNKNOWN
    taints = {} if health is Health.HEALTHY else {UNHEALTHY_TAINT: health.value}
    if cordoned:
        taints[CORDONED_TAINT] = ""
    return taints or None


def _known(attributes: Mapping[str, str | int | None]) -> dict[str, str | int]:
    return {key: value for key, value in attributes.items() if value is not None and value != ""}
