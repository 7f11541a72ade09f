"""The MIG instances of one GPU.

The profile is taken from the instance's name (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`): NVML has no
question for it, and working it out from slice counts loses the `+me` and `1c.` variants.
"""

from collections.abc import Callable, Iterator
from typing import Any

from gpufleet.model.device import MigInstance


def read_mig(nvml: Any, ask: Callable[..., Any], handle: Any) -> tuple[MigInstance, ...]:
    """Every MIG instance of the GPU by its number."""
    return tuple(_instances(nvml, ask, handle))


def _instances(nvml: Any, ask: Callable[..., Any], handle: Any) -> Iterator[MigInstance]:
    for number in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance is None:  # numbers have gaps
            continue
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, instance)
        name = ask(nvml.nvmlDeviceGetName, instance) or ""
        yield MigInstance(
            index=number,
            uuid=ask(nvml.nvmlDeviceGetUUID, instance) or "",
            profile=name.rpartition(" MIG ")[2],
            memory_bytes=memory.total if memory else None,
            gpu_instance=ask(nvml.nvmlDeviceGetGpuInstanceId, instance),
            compute_instance=ask(nvml.nvmlDeviceGetComputeInstanceId, instance),
        )
