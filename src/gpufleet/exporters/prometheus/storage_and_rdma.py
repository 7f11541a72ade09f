"""The cluster's storage and InfiniBand ports, from kubelet and node exporter.

Storage is the sum of the volumes that kubelets measure, each PersistentVolumeClaim once. Without such
metrics it is the sum of the nodes' file systems: a network file system counts once for all nodes, a
local one once per node.
"""

import asyncio
from collections import Counter
from collections.abc import Collection

import numpy as np

from gpufleet.exporters.known_exporters import NODE_LABELS
from gpufleet.exporters.labels import node_name
from gpufleet.exporters.prometheus.promql import by
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.reading import RdmaPorts, StorageUse

_CLAIM = ("namespace", "exported_namespace", "persistentvolumeclaim")
_VOLUMES = "kubelet_volume_stats_"
_FILESYSTEM = (*NODE_LABELS, "device", "fstype")
_PORT = (*NODE_LABELS, "device", "port")
_ACTIVE = 4
_PSEUDO = (
    "tmpfs|devtmpfs|overlay|squashfs|ramfs|rootfs|iso9660|proc|sysfs|cgroup2?|autofs|efivarfs|fuse.lxcfs"
)
_SHARED = (
    "nfs",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "wekafs",
    "glusterfs",
    "cifs",
    "smb",
    "9p",
    "fuse.",
    "pvfs",
)


async def read_storage(snapshot: QuerySnapshot, names: Collection[str]) -> StorageUse | None:
    """Return the usage of the cluster's storage, or None if it is not measured."""
    if _VOLUMES + "capacity_bytes" in names:
        return await _claims(snapshot)
    if "node_filesystem_size_bytes" in names:
        return await _filesystems(snapshot)
    return None


async def read_rdma(snapshot: QuerySnapshot, names: Collection[str]) -> RdmaPorts | None:
    """Return the cluster's InfiniBand ports, or None if they are not measured."""
    if "node_infiniband_state_id" not in names:
        return None
    (ports, states), (rated, rates) = await asyncio.gather(
        snapshot.vector(by("max", _PORT, "node_infiniband_state_id"), _PORT),
        snapshot.vector(by("max", _PORT, "node_infiniband_rate_bytes_per_second"), _PORT),
    )
    active = {port for port, state in zip(ports, states.tolist(), strict=True) if state == _ACTIVE}
    known = {port: rate for port, rate in zip(rated, rates.tolist(), strict=True) if np.isfinite(rate)}
    common = Counter(known[port] for port in active if port in known).most_common(1)
    return RdmaPorts(
        total=len(ports),
        active=len(active),
        port_rate=common[0][0] if common else 0.0,
        total_rate=sum(known.get(port, 0.0) for port in active),
    )


async def _claims(snapshot: QuerySnapshot) -> StorageUse:
    answers = await asyncio.gather(
        *(
            snapshot.vector(by("max", _CLAIM, f"{_VOLUMES}{kind}_bytes"), _CLAIM)
            for kind in ("capacity", "used", "available")
        )
    )
    capacity, used, available = (float(np.nansum(values)) for _, values in answers)
    return StorageUse(capacity, used, available)


async def _filesystems(snapshot: QuerySnapshot) -> StorageUse:
    matcher = f'{{fstype!~"{_PSEUDO}"}}'
    sizes, free = await asyncio.gather(
        snapshot.vector(by("max", _FILESYSTEM, f"node_filesystem_size_bytes{matcher}"), _FILESYSTEM),
        snapshot.vector(by("max", _FILESYSTEM, f"node_filesystem_avail_bytes{matcher}"), _FILESYSTEM),
    )
    available = dict(zip(free[0], free[1].tolist(), strict=True))
    once: dict[tuple[str, str], tuple[float, float]] = {}
    for labels, size in zip(sizes[0], sizes[1].tolist(), strict=True):
        left = available.get(labels)
        if left is None or not np.isfinite(size) or not np.isfinite(left):
            continue
        shared = labels.fstype.startswith(_SHARED)
        node = "" if shared else node_name({name: getattr(labels, name) for name in NODE_LABELS})
        once.setdefault((node, labels.device), (size, left))
    capacity, left = sum(size for size, _ in once.values()), sum(left for _, left in once.values())
    return StorageUse(capacity, capacity - left, left)
