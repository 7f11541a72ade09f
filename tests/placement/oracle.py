"""The documented orders, word by word, by trying every set: slow and obvious."""

from itertools import combinations

from gpufleet.placement import CandidateGpu, CandidateNode, Exclusivity, Policy, Request, Topology


def feasible_sets(request: Request, node: CandidateNode, free: dict[int, int]) -> list[tuple[int, ...]]:
    """Every set of GPUs (Exclusive, Shared) that the contract allows."""
    need = request.milli_per_gpu
    eligible = [
        gpu
        for gpu in sorted(node.gpus, key=lambda gpu: gpu.id)
        if gpu.health == "Healthy"
        and not gpu.cordoned
        and not node.cordoned
        and node.ready
        and not gpu.taken
        and not gpu.mig
        and (not request.models or gpu.model in request.models)
        and free[gpu.id] >= need
    ]
    sets = combinations(eligible, request.count)
    if request.topology is Topology.REQUIRED:
        sets = (chosen for chosen in sets if level(request, chosen) == 0)  # type: ignore[assignment]
    return [tuple(gpu.id for gpu in chosen) for chosen in sets]


def level(request: Request, chosen: tuple[CandidateGpu, ...]) -> int:
    """0: one island and enough bandwidth, 1: one island, 2: any."""
    if request.topology is Topology.IGNORE:
        return 0
    one_island = len({gpu.island or f"alone-{gpu.id}" for gpu in chosen}) == 1
    if one_island and min(gpu.bandwidth_gbps for gpu in chosen) >= request.min_bandwidth_gbps:
        return 0
    return 1 if one_island else 2


def best_set(request: Request, node: CandidateNode, free: dict[int, int]) -> tuple[int, ...] | None:
    """The least feasible set in the documented order."""
    sets = feasible_sets(request, node, free)
    if not sets:
        return None
    by_id = {gpu.id: gpu for gpu in node.gpus}
    least = min(level(request, tuple(by_id[gpu] for gpu in ids)) for ids in sets)
    sets = [ids for ids in sets if level(request, tuple(by_id[gpu] for gpu in ids)) == least]
    return min(sets, key=lambda ids: _key(request, node, free, ids, _pool(request, node, sets, ids, least)))


def _pool(
    request: Request, node: CandidateNode, sets: list[tuple[int, ...]], ids: tuple[int, ...], least: int
) -> set[int]:
    """The GPUs that compete: those of sets at this level, on the same island where one island is asked for."""
    by_id = {gpu.id: gpu for gpu in node.gpus}
    everything = {gpu for other in sets for gpu in other}
    if request.topology is Topology.IGNORE or least == 2:
        return everything
    island = by_id[ids[0]].island
    return {gpu for gpu in everything if island and by_id[gpu].island == island} | set(ids)


def _key(
    request: Request, node: CandidateNode, free: dict[int, int], ids: tuple[int, ...], pool: set[int]
) -> tuple[object, ...]:
    wanted = request.prefer_ids if request.policy is Policy.PREFER_IDS else ()
    hits = sorted(wanted.index(gpu) for gpu in ids if gpu in wanted)
    rest = tuple(gpu for gpu in ids if gpu not in wanted)
    preference = (request.count - len(hits), tuple(hits))
    if request.exclusivity is Exclusivity.SHARED:
        sign = -1 if request.policy is Policy.SPREAD else 1
        return (*preference, tuple(sorted((sign * free[gpu], gpu) for gpu in rest)))
    if request.policy is Policy.ANY:
        return ids
    if request.policy is Policy.SPREAD:
        islands: dict[str, int] = {}
        by_id = {gpu.id: gpu for gpu in node.gpus}
        for gpu in ids:
            name = by_id[gpu].island or f"alone-{gpu}"
            islands[name] = islands.get(name, 0) + 1
        return -len(islands), sum(use * use for use in islands.values()), ids
    runs = _runs(sorted(pool - {wanted[at] for at in hits}))
    touched = [run for run in runs if run & set(rest)]
    pieces = len(_runs(sorted(rest)))
    return (*preference, pieces, sum(map(len, touched)) - len(rest), rest)


def _runs(ids: list[int]) -> list[set[int]]:
    runs: list[set[int]] = []
    for gpu in ids:
        if runs and gpu - 1 in runs[-1]:
            runs[-1].add(gpu)
        else:
            runs.append({gpu})
    return runs
