"""Parse Slurm's notations for GPUs.

    gpu:a100:8(S:0-1)                  a node has eight, on sockets 0 and 1
    gpu:a100:3(IDX:2-4)                a job has three: 2 to 4
    gres:gpu:2, gres/gpu:a100:2        a job requests two (22.05 and 24.11)
    cpu=2,gres/gpu=4,gres/gpu:a100=4   four in total, four of them a100 (trackable resources)

    gpu:a100:2,shard:a100:16           a node has eight shards of each GPU
    shard:4(IDX:1)                     a job has four shards of the second GPU
    shard:a100:4(0/8,4/8)              the same, with what is used of the shards of each GPU

Other resources (nic, mps, …) are ignored.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from gpufleet.sources.slurm.hostlist import numbers

_UNITS = {"": 1, "K": 1024, "M": 1024**2}
_COUNT = re.compile(r"(\d+)([KM]?)")
_INDICES = re.compile(r"IDX:([0-9,\-]+)")
_USED = re.compile(r"\d+/\d+(?:,\d+/\d+)*")
SHARD = "shard"


class GresGpus(NamedTuple):
    """GPUs, or shards of GPUs, of one type; the indices are empty if Slurm does not report them."""

    amount: int
    type: str = ""
    indices: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def gpus_in(text: str, resource: str = "gpu") -> tuple[GresGpus, ...]:
    """Return all entries of GPUs (or shards) in order. Cached: thousands of jobs and nodes have the same few texts."""
    if resource not in text:
        return ()
    found = []
    for item in _items(text):
        name, _, detail = item.partition("(")
        parts = re.split(r"[:=]", re.sub(r"^gres[:/]", "", name.strip()))
        if parts[0] != resource:
            continue
        count = _COUNT.fullmatch(parts[-1]) if len(parts) > 1 else None
        middle = parts[1:-1] if count else parts[1:]
        amount = int(count[1]) * _UNITS[count[2]] if count else 1
        found.append(GresGpus(amount, ":".join(middle), _indices(detail.rstrip(")"))))
    return tuple(found)


def count_in(text: str, resource: str = "gpu") -> int:
    """Return the number of GPUs (or shards); a text may have both a total and the counts by type."""
    found = gpus_in(text, resource)
    typed = sum(gpus.amount for gpus in found if gpus.type)
    return max(typed, sum(gpus.amount for gpus in found if not gpus.type))


def indices_in(text: str, resource: str = "gpu") -> tuple[int, ...]:
    """Return the GPU indices, ascending."""
    return tuple(sorted({index for gpus in gpus_in(text, resource) for index in gpus.indices}))


def shards_per_gpu(text: str) -> int:
    """Return the number of shards of each GPU of a node; 0 without shards."""
    gpus = count_in(text)
    return count_in(text, SHARD) // gpus if gpus else 0


def type_in(text: str) -> str:
    """Return the type of the GPUs if there is exactly one."""
    types = {gpus.type for gpus in gpus_in(text) if gpus.amount}
    return types.pop() if len(types) == 1 else ""


def _indices(detail: str) -> tuple[int, ...]:
    if _USED.fullmatch(detail):
        return tuple(at for at, used in enumerate(detail.split(",")) if not used.startswith("0/"))
    found = _INDICES.search(detail)
    return numbers(found[1]) if found else ()


def _items(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return re.split(r",(?![^()]*\))", text)
