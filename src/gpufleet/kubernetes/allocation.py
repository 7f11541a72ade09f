"""Encode and decode the annotation `gpu.scheduling/allocated`: a node and GPU ids, as in `node-a:0,1`."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpufleet.kubernetes.annotations import ALLOCATED
from gpufleet.kubernetes.objects import Pod

_ALLOCATION = re.compile(r"(?P<node>[^:\s]+):(?P<ids>[0-9]{1,4}(?:,[0-9]{1,4})*)")


class AllocatedGpus(NamedTuple):
    """GPUs of one node, by id."""

    node: str
    gpus: tuple[int, ...]


def format_allocation(node: str, gpus: Iterable[int]) -> str:
    """Return the value of the annotation."""
    return f"{node}:{','.join(map(str, gpus))}"


def parse_allocation(text: str) -> AllocatedGpus | None:
    """Parse the value of the annotation; return None if it is malformed."""
    match = _ALLOCATION.fullmatch(text)
    return AllocatedGpus(match["node"], tuple(map(int, match["ids"].split(",")))) if match else None


def allocated_gpus(pod: Pod) -> tuple[int, ...]:
    """Return the GPUs allocated to a bound pod.

    Users can write the annotation where the webhook does not run, so a value that is malformed
    or names another node than the pod's counts as no allocation.
    """
    found = parse_allocation(pod.metadata.annotations.get(ALLOCATED, ""))
    return found.gpus if found is not None and found.node == pod.spec.node_name else ()
