"""Pick the best set of GPUs of one node for a request, or return the reason why there is none.

Topology comes first. `Required` allows only sets on one island with enough bandwidth.
`Preferred` takes such a set if there is one, else a set on one island, else any. The policy
decides among the sets of the best level. The search is exact: a set is found whenever one exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.placement.gpu_sets import Choice, Key, contiguous, lowest, one_by_one, prefer, spread
from gpufleet.placement.node_shape import Occupancy, Shape, ids_of
from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import MOST_GPUS, WHOLE, Exclusivity, Policy, Request, Topology

_BASE = 2 * MOST_GPUS


@dataclass(frozen=True, slots=True)
class Pick:
    """The chosen GPUs (and MIG instances) of one node. `quality` ranks nodes; 0 meets every preference."""

    gpus: tuple[int, ...]
    instances: tuple[tuple[int, str], ...] = ()
    quality: int = 0


def pick(request: Request, occupancy: Occupancy) -> Pick | Reason:
    """Return the best GPUs of a node in this occupancy."""
    shape = occupancy.shape
    if shape.cordoned:
        return Reason.CORDONED
    if not shape.ready:
        return Reason.NOT_READY
    if request.count == 0:
        return Pick(())
    if request.exclusivity is Exclusivity.MIG:
        return _pick_instances(request, occupancy)
    free = occupancy.whole
    if request.exclusivity is Exclusivity.SHARED:
        free = occupancy.with_share(request.share_milli)
    accepted = shape.of_models(request.models)
    reason = _too_few(request, shape.plain, accepted, shape.usable, free)
    if reason:
        return reason
    for level, pools in enumerate(_levels(request, shape, free & accepted)):
        choices = [_choose(request, occupancy, pool) for pool in pools if pool.bit_count() >= request.count]
        if choices:
            key, chosen = min(choices)
            return Pick(ids_of(chosen), quality=_quality(request, level, key))
    return Reason.ISLAND


def _too_few(request: Request, present: int, accepted: int, usable: int, free: int) -> Reason:
    for reason, mask in (
        (Reason.TOO_FEW_GPUS, present),
        (Reason.MODEL, present & accepted),
        (Reason.UNHEALTHY, present & accepted & usable),
        (Reason.BUSY, accepted & free),
    ):
        if mask.bit_count() < request.count:
            return reason
    return Reason.NONE


def _levels(request: Request, shape: Shape, pool: int) -> Iterator[list[int]]:
    """Yield the pools to choose from, best level first. A set lies within one pool."""
    if request.topology is not Topology.IGNORE:
        fast = shape.at_least(request.min_bandwidth_gbps)
        yield [island & pool & fast for island in shape.islands]
    if request.topology is Topology.PREFERRED:
        yield [island & pool for island in shape.islands]
    if request.topology is not Topology.REQUIRED:
        yield [pool]


def _choose(request: Request, occupancy: Occupancy, pool: int) -> Choice:
    def rest(pool: int, count: int) -> Choice:
        return _by_share(request, occupancy, pool, count) if shared else contiguous(pool, count)

    shared = request.exclusivity is Exclusivity.SHARED
    if request.policy is Policy.PREFER_IDS:
        return prefer(pool, request.count, request.prefer_ids, rest)
    if shared or request.policy is Policy.CONTIGUOUS:
        return rest(pool, request.count)
    if request.policy is Policy.SPREAD:
        return spread(pool, request.count, occupancy.shape.islands)
    return lowest(pool, request.count)


def _by_share(request: Request, occupancy: Occupancy, pool: int, count: int) -> Choice:
    """Choose the fullest shared GPUs that still fit, so that idle ones stay idle; `spread` inverts it."""
    sign = -1 if request.policy is Policy.SPREAD else 1
    position, free = occupancy.shape.position, occupancy.free
    return one_by_one(pool, count, lambda gpu: (sign * free[position[gpu]],))


def _quality(request: Request, level: int, key: Key) -> int:
    """Combine topology level, preferred ids missed, and extra runs or missing islands into one rank."""
    missed, shape = 0, 0
    if request.policy is Policy.PREFER_IDS:
        missed = int(key[0])
    if request.exclusivity is Exclusivity.EXCLUSIVE:
        if request.policy is Policy.CONTIGUOUS:
            shape = int(key[0]) - 1
        elif request.policy is Policy.SPREAD:
            shape = request.count + int(key[0])
    return (level * _BASE + missed) * _BASE + shape


def _pick_instances(request: Request, occupancy: Occupancy) -> Pick | Reason:
    """Pick MIG instances: on preferred GPUs, then the smallest, then on the fullest GPUs, then by id."""
    shape = occupancy.shape
    accepted = shape.of_models(request.models)
    offered = _instances(request, shape, tuple(~0 for _ in shape.gpus), ~0)
    usable = [(gpu, at) for gpu, at in offered if shape.usable >> gpu & 1]
    free = [
        (gpu, at)
        for gpu, at in _instances(request, shape, occupancy.mig, shape.usable & accepted)
        # A lease that names no instance holds the whole GPU.
        if occupancy.free[shape.position[gpu]] >= WHOLE
    ]
    for reason, found in (
        (Reason.TOO_FEW_GPUS, offered),
        (Reason.MODEL, [pair for pair in offered if accepted >> pair[0] & 1]),
        (Reason.UNHEALTHY, [pair for pair in usable if accepted >> pair[0] & 1]),
        (Reason.BUSY, free),
    ):
        if len(found) < request.count:
            return reason
    preferred = request.prefer_ids if request.policy is Policy.PREFER_IDS else ()

    def rank(pair: tuple[int, int]) -> tuple[int, int, int, int, int]:
        gpu, at = pair
        place = preferred.index(gpu) if gpu in preferred else len(preferred)
        size = _slices(shape.gpus[shape.position[gpu]].mig[at].profile)
        return place, size, occupancy.mig[shape.position[gpu]].bit_count(), gpu, at

    for level, pools in enumerate(_levels(request, shape, ~0)):
        sets = [sorted(map(rank, (pair for pair in free if pool >> pair[0] & 1))) for pool in pools]
        best = min((found[: request.count] for found in sets if len(found) >= request.count), default=None)
        if best is not None:
            missed = sum(place == len(preferred) for place, *_ in best) if preferred else 0
            names = sorted((gpu, at) for *_, gpu, at in best)
            size = 0 if request.mig_profile else min(_BASE - 1, sum(each[1] for each in best))
            instances = tuple((gpu, shape.gpus[shape.position[gpu]].mig[at].id) for gpu, at in names)
            gpus = tuple(sorted({gpu for gpu, _ in names}))
            return Pick(gpus, instances, (level * _BASE + missed) * _BASE + size)
    return Reason.ISLAND


def _instances(request: Request, shape: Shape, free: tuple[int, ...], among: int) -> list[tuple[int, int]]:
    """Return (GPU id, position of the instance) for each free instance of the profile, or of any."""
    return [
        (gpu.id, at)
        for gpu, bits in zip(shape.gpus, free, strict=True)
        if among >> gpu.id & 1
        for at, instance in enumerate(gpu.mig)
        if bits >> at & 1 and request.mig_profile in ("", instance.profile)
    ]


def _slices(profile: str) -> int:
    """Return the compute slices of a MIG profile such as 1g.10gb."""
    number = profile.partition("g")[0]
    return int(number) if number.isascii() and number.isdigit() else 0
