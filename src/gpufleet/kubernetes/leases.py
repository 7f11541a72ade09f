"""Leases of GPUs: one object for each GPU that somebody holds, named `gpu-{node}-{id}`.

Its name is the lock: of two schedulers that create it one gets a conflict. `holderIdentity`
names the pods by UID, separated by commas; an annotation says of each who it is, how much of
the GPU it has and by which attempt. The attempt's stamp changes with every write for that pod,
so that whoever wants to take a holding back sees whether it was renewed meanwhile.
A lease without that annotation was made by hand or by another program; its GPU is taken.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import structs

from gpufleet.kubernetes.annotations import HOLDERS, LEASE_GPU, LEASE_NODE
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta, micro_time
from gpufleet.placement.request import WHOLE

LABELS: Mapping[str, str] = {"app.kubernetes.io/managed-by": "gpufleet-scheduler"}
_NAME = re.compile(r"gpu-(?P<node>.+)-(?P<gpu>\d{1,4})")
_LONGEST_NAME = 253


class LeaseHolder(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One pod's part of a GPU: thousandths, or MIG instances; `stamp` is the attempt that wrote it."""

    namespace: str = ""
    pod: str = ""
    claim: str = ""
    milli: int = 0
    instances: tuple[str, ...] = ()
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class GpuLease:
    """A lease as placement reads it."""

    node: str
    gpu: int
    holders: Mapping[str, LeaseHolder]
    foreign: bool
    """Made by hand or by another program: respected, and never changed while its pod may live."""
    object: Lease

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.object.metadata.name


_holders = msgspec.json.Decoder(dict[str, LeaseHolder])


def lease_name(node: str, gpu: int) -> str:
    """The name of a GPU's lease; the node's name is cut where the whole would be too long for an object."""
    name = f"gpu-{node}-{gpu}"
    if len(name) <= _LONGEST_NAME:
        return name
    mark = hashlib.sha256(node.encode()).hexdigest()[:12]
    return f"gpu-{node[:200].rstrip('.-')}-{mark}-{gpu}"


def read_lease(lease: Lease) -> GpuLease | None:
    """The lease of a GPU, or None if this lease is about something else."""
    named = _NAME.fullmatch(lease.metadata.name)
    if named is None:
        return None
    notes = lease.metadata.annotations
    gpu = notes.get(LEASE_GPU, "")
    node = notes.get(LEASE_NODE) or named["node"]
    number = int(gpu) if gpu.isascii() and gpu.isdigit() else int(named["gpu"])
    uids = [uid for uid in (lease.spec.holder_identity or "").split(",") if uid]
    try:
        told = _holders.decode(notes.get(HOLDERS, "{}"))
    except msgspec.MsgspecError:
        told = {}
    if uids and set(uids) == told.keys():
        return GpuLease(node, number, told, False, lease)
    unknown = LeaseHolder(milli=WHOLE)
    holders = {uid: told.get(uid, unknown) for uid in uids} or {f"lease {lease.metadata.name}": unknown}
    return GpuLease(node, number, holders, True, lease)


def new_lease(
    namespace: str, node: str, gpu: int, holders: Mapping[str, LeaseHolder], model: str, now: datetime
) -> Lease:
    """The object to create for the first holders of a GPU."""
    notes = {LEASE_NODE: node, LEASE_GPU: str(gpu), HOLDERS: _text(holders)}
    if model:
        notes["gpu.scheduling/model"] = model
    return Lease(
        metadata=ObjectMeta(
            name=lease_name(node, gpu), namespace=namespace, labels=dict(LABELS), annotations=notes
        ),
        spec=LeaseSpec(
            holder_identity=",".join(holders), acquire_time=micro_time(now), renew_time=micro_time(now)
        ),
    )


def with_holders(lease: Lease, holders: Mapping[str, LeaseHolder], now: datetime) -> Lease:
    """The same lease with other holders, to be written back under its version."""
    notes = {**lease.metadata.annotations, HOLDERS: _text(holders)}
    acquired = lease.spec.acquire_time
    return structs.replace(
        lease,
        metadata=structs.replace(lease.metadata, annotations=notes),
        spec=structs.replace(
            lease.spec,
            holder_identity=",".join(holders),
            acquire_time=micro_time(acquired) if acquired else None,
            renew_time=micro_time(now),
        ),
    )


def _text(holders: Mapping[str, LeaseHolder]) -> str:
    return msgspec.json.encode(dict(holders)).decode()
