"""GPU leases: one Lease object named `gpu-{node}-{id}` for each GPU in use.

The name is the lock: if two schedulers create the same lease, one of them gets a conflict.
`holderIdentity` lists the UIDs of the pods, separated by commas. An annotation describes each
holder: its pod, its share of the GPU, and the stamp of the attempt that wrote it. Every write
for a pod changes the stamp, so a process that wants to release a holder sees whether another
process has renewed it. A lease without that annotation was made by hand or by another program;
its GPU counts as taken.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import structs

from gpufleet.kubernetes.annotations import HOLDERS, LEASE_GPU, LEASE_MODEL, LEASE_NODE
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta, micro_time

LABELS: Mapping[str, str] = {"app.kubernetes.io/managed-by": "gpufleet-scheduler"}
_NAME = re.compile(r"gpu-(?P<node>.+)-(?P<gpu>[0-9]{1,4})")
_MAX_NAME_LENGTH = 253


class LeaseHolder(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A pod's share of one GPU: thousandths of it, or MIG instances."""

    namespace: str = ""
    pod: str = ""
    claim: str = ""
    milli: int = 0
    instances: tuple[str, ...] = ()
    stamp: str = ""
    """Identifies the attempt that wrote this entry."""


@dataclass(frozen=True, slots=True)
class GpuLease:
    """A decoded GPU lease."""

    node: str
    gpu: int
    holders: Mapping[str, LeaseHolder]
    """By UID of the pod."""
    foreign: bool
    """Made by hand or by another program: never changed while its pod may be running."""
    object: Lease

    @property
    def name(self) -> str:
        """Return the name of the Lease object."""
        return self.object.metadata.name


_holders = msgspec.json.Decoder(dict[str, LeaseHolder])


def lease_name(node: str, gpu: int) -> str:
    """Return the name of a GPU's lease; long node names are cut and marked with a hash."""
    name = f"gpu-{node}-{gpu}"
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:12]
    return f"gpu-{node[:200].rstrip('.-')}-{digest}-{gpu}"


def read_lease(lease: Lease) -> GpuLease | None:
    """Decode a GPU lease; return None if the lease is for something else."""
    match = _NAME.fullmatch(lease.metadata.name)
    if match is None:
        return None
    annotations = lease.metadata.annotations
    gpu = annotations.get(LEASE_GPU, "")
    node = annotations.get(LEASE_NODE) or match["node"]
    number = int(gpu) if gpu.isascii() and gpu.isdigit() else int(match["gpu"])
    uids = [uid for uid in (lease.spec.holder_identity or "").split(",") if uid]
    try:
        described = _holders.decode(annotations.get(HOLDERS, "{}"))
    except msgspec.MsgspecError:
        described = {}
    if uids and set(uids) == described.keys():
        return GpuLease(node, number, described, False, lease)
    unknown = LeaseHolder(milli=1000)  # the whole GPU
    holders = {uid: described.get(uid, unknown) for uid in uids} or {f"lease {lease.metadata.name}": unknown}
    return GpuLease(node, number, holders, True, lease)


def new_lease(
    namespace: str, node: str, gpu: int, holders: Mapping[str, LeaseHolder], model: str, now: datetime
) -> Lease:
    """Return the object to create for the first holders of a GPU."""
    annotations = {LEASE_NODE: node, LEASE_GPU: str(gpu), HOLDERS: _encode(holders)}
    if model:
        annotations[LEASE_MODEL] = model
    return Lease(
        metadata=ObjectMeta(
            name=lease_name(node, gpu), namespace=namespace, labels=dict(LABELS), annotations=annotations
        ),
        spec=LeaseSpec(
            holder_identity=",".join(holders), acquire_time=micro_time(now), renew_time=micro_time(now)
        ),
    )


def with_holders(lease: Lease, holders: Mapping[str, LeaseHolder], now: datetime) -> Lease:
    """Return the lease with other holders, to replace it at the version that was read."""
    annotations = {**lease.metadata.annotations, HOLDERS: _encode(holders)}
    acquired = lease.spec.acquire_time
    return structs.replace(
        lease,
        metadata=structs.replace(lease.metadata, annotations=annotations),
        spec=structs.replace(
            lease.spec,
            holder_identity=",".join(holders),
            acquire_time=micro_time(acquired) if acquired else None,
            renew_time=micro_time(now),
        ),
    )


def _encode(holders: Mapping[str, LeaseHolder]) -> str:
    return msgspec.json.encode(dict(holders)).decode()
