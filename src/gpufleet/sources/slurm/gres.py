"""GPUs in Slurm's many spellings.

    gpu:a100:8(S:0-1)                  a node has eight, on sockets 0 and 1
    gpu:a100:3(IDX:2-4)                a job has three, namely 2 to 4
    gres:gpu:2, gres/gpu:a100:2        a job asks for two (22.05 and 24.11)
    cpu=2,gres/gpu=4,gres/gpu:a100=4   four, of which four a100 (trackable resources)

Other resources (nic, mps, shard, …) are left out: mps and shard are shares of GPUs that Slurm
doesn't tie to indices in the same way.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from gpufleet.sources.slurm.hostlist import numbers

_UNITS = {"": 1, "K": 1024, "M": 1024**2}
_COUNT = re.compile(r"(\d+)([KM]?)")
_INDICES = re.compile(r"IDX:([0-9,\-]+)")


class Gpus(NamedTuple):
    """Some GPUs of one type; the indices are empty where Slurm doesn't say."""

    amount: int
    type: str = ""
    indices: tuple[int, ...] = ()


@lru_cache(maxsize=4096)
def gpus_in(text: str) -> tuple[Gpus, ...]:
    """Every mention of GPUs, in order. Thousands of jobs and nodes say the same few things."""
    if "gpu" not in text:
        return ()
    found = []
    for item in _items(text):
        name, _, detail = item.partition("(")
        parts = re.split(r"[:=]", re.sub(r"^gres[:/]", "", name.strip()))
        if parts[0] != "gpu":
            continue
        count = _COUNT.fullmatch(parts[-1]) if len(parts) > 1 else None
        middle = parts[1:-1] if count else parts[1:]
        amount = int(count[1]) * _UNITS[count[2]] if count else 1
        indices = _INDICES.search(detail)
        found.append(Gpus(amount, ":".join(middle), numbers(indices[1]) if indices else ()))
    return tuple(found)


def count_in(text: str) -> int:
    """How many GPUs the text stands for; one total may stand beside the types that it is made of."""
    found = gpus_in(text)
    typed = sum(gpus.amount for gpus in found if gpus.type)
    return max(typed, sum(gpus.amount for gpus in found if not gpus.type))


def indices_in(text: str) -> tuple[int, ...]:
    """Which GPUs of a node are meant, ascending."""
    return tuple(sorted({index for gpus in gpus_in(text) for index in gpus.indices}))


def type_in(text: str) -> str:
    """The type of the GPUs, where there is one alone."""
    types = {gpus.type for gpus in gpus_in(text) if gpus.amount}
    return types.pop() if len(types) == 1 else ""


def _items(text: str) -> list[str]:
    """The parts between commas that are not inside parentheses."""
    return re.split(r",(?![^()]*\))", text)
