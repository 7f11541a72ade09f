"""Read the MIG instances of one GPU.

The profile comes from the name of the instance (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`): NVML has no call for
it, and deriving it from slice counts would lose the `+me` and `1c.` variants.
"""

from collections.abc import Callable, Iterator
from typing import Any

from gpufleet.model.device import MigInstance


def read_mig(nvml: Any, query: Callable[..., Any], handle: Any) -> tuple[MigInstance, ...]:
    """Return the MIG instances of the GPU by number."""
    return tuple(_instances(nvml, query, handle))


def _instances(nvml: Any, query: Callable[..., Any], handle: Any) -> Iterator[MigInstance]:
    for number in range(query(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = query(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance is None:  # numbers have gaps
            continue
        memory = query(nvml.nvmlDeviceGetMemoryInfo, instance)
        name = query(nvml.nvmlDeviceGetName, instance) or ""
        yield MigInstance(
            index=number,
            uuid=query(nvml.nvmlDeviceGetUUID, instance) or "",
            profile=name.rpartition(" MIG ")[2],
            memory_bytes=memory.total if memory else None,
            gpu_instance=query(nvml.nvmlDeviceGetGpuInstanceId, instance),
            compute_instance=query(nvml.nvmlDeviceGetComputeInstanceId, instance),
        )
