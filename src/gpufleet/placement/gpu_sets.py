"""Choose the best `count` GPUs out of a pool, for each policy, without trying every set.

Every function returns a key and the chosen mask. Keys of one policy compare across pools; the
lowest is best. Keys end with the ids, so that no two sets tie. docs/placement.md documents the
orders; tests compare them with a search through all sets.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpufleet.placement.node_shape import ids_of

Key = tuple[Any, ...]
Choice = tuple[Key, int]


def lowest(pool: int, count: int) -> Choice:
    """Choose the lowest ids."""
    ids = ids_of(pool)[:count]
    return (0, ids), sum(1 << gpu for gpu in ids)


def contiguous(pool: int, count: int) -> Choice:
    """Choose the fewest runs of adjacent ids, then the tightest runs, then the lowest ids."""
    if not count:
        return (0, 0, ()), 0
    runs = _runs(pool)
    longest = sorted((length for _, length in runs), reverse=True)
    pieces, reach = 0, 0
    while reach < count:
        reach += longest[pieces]
        pieces += 1
    taken = _tightest_runs(runs, pieces, count)
    chosen, missing = 0, count
    for start, length in taken:
        part = min(length, missing)
        chosen |= ((1 << part) - 1) << start
        missing -= part
    return (pieces, sum(length for _, length in taken) - count, ids_of(chosen)), chosen


def spread(pool: int, count: int, islands: Sequence[int]) -> Choice:
    """Choose the most islands, then the most even use of them, then the lowest ids."""
    members = [ids_of(pool & island) for island in islands if pool & island]
    depth = 0
    while sum(min(len(ids), depth + 1) for ids in members) <= count and depth < count:
        depth += 1
    base = [gpu for ids in members for gpu in ids[:depth]]
    extra = sorted(ids[depth] for ids in members if len(ids) > depth)[: count - len(base)]
    chosen = sum(1 << gpu for gpu in (*base, *extra))
    uses = [(chosen & island).bit_count() for island in islands if chosen & island]
    return (-len(uses), sum(use * use for use in uses), ids_of(chosen)), chosen


def prefer(pool: int, count: int, preferred: Sequence[int], rest: Callable[[int, int], Choice]) -> Choice:
    """Choose as many preferred ids as possible, in their order, and the others by `rest`."""
    order = [at for at, gpu in enumerate(preferred) if pool >> gpu & 1 and gpu not in preferred[:at]][:count]
    hits = sum(1 << preferred[at] for at in order)
    key, others = rest(pool & ~hits, count - len(order))
    return (count - len(order), tuple(order), *key), hits | others


def one_by_one(pool: int, count: int, rank: Callable[[int], Key]) -> Choice:
    """Choose the GPUs with the lowest rank."""
    best = sorted((*rank(gpu), gpu) for gpu in ids_of(pool))[:count]
    return tuple(best), sum(1 << int(key[-1]) for key in best)


def _runs(pool: int) -> list[tuple[int, int]]:
    """Return the runs of adjacent ids as (first id, length)."""
    runs = []
    while pool:
        start = (pool & -pool).bit_length() - 1
        shifted = pool >> start
        length = (~shifted & (shifted + 1)).bit_length() - 1
        runs.append((start, length))
        pool &= ~(((1 << length) - 1) << start)
    return runs


def _tightest_runs(runs: list[tuple[int, int]], pieces: int, count: int) -> list[tuple[int, int]]:
    """Return the `pieces` runs that hold `count` with the least left over; the first among equals."""
    if pieces == 1:
        return [min((run for run in runs if run[1] >= count), key=lambda run: (run[1], run[0]))]
    sums = _sums_of_later_runs(runs, pieces)
    reachable = sums[0][pieces] >> count
    total = count + (reachable & -reachable).bit_length() - 1
    taken = []
    for at, (start, length) in enumerate(runs):
        if pieces and total >= length and sums[at + 1][pieces - 1] >> (total - length) & 1:
            taken.append((start, length))
            total -= length
            pieces -= 1
    return taken


def _sums_of_later_runs(runs: list[tuple[int, int]], pieces: int) -> list[list[int]]:
    """Return [at][n]: the sums, as bits, that `n` of the runs from `at` on can have."""
    later = [1] + [0] * pieces
    table = [later]
    for _, length in reversed(runs):
        later = [later[0]] + [later[n] | later[n - 1] << length for n in range(1, pieces + 1)]
        table.append(later)
    return table[::-1]
