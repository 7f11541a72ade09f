"""What one member of a unit needs of a node, and what nodes are like apart from their GPUs.

Needs and classes are compared by content, so that equal needs of many units share all cached results. Which class admits
which need is answered by the caller's `Exclusion`, once for each pair: the core does not know selectors or taints.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import Request

Amounts = tuple[int, ...]
"""Amounts of the resources of a node besides GPUs, in the order of `Tables.resources`."""

UNLIMITED = 1 << 60
"""The free amount of a resource that a node does not report."""

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Need:
    """GPUs of one node for one member, with its other requirements.

    `admission` is compared with the class of a node. `nodes` are the numbers of the only nodes that may serve the need,
    as bits; None for any. `amounts` are requests of CPU, memory and so on.
    """

    request: Request
    admission: Hashable = frozenset()
    nodes: int | None = None
    amounts: Amounts = ()


Exclusion = Callable[[Hashable, Hashable], Reason]
"""Returns why nodes of a class admit no need with an admission; Reason.NONE if they do."""


def labels_exclude(labels: Hashable, selector: Hashable) -> Reason:
    """Compare classes that are sets of labels with admissions that are node selectors."""
    assert isinstance(labels, frozenset)
    assert isinstance(selector, frozenset)
    return Reason.NONE if selector <= labels else Reason.POD_LABELS


def less(free: Amounts, taken: Amounts) -> Amounts:
    """Return the amounts that are left; unlimited ones stay so."""
    if not taken:
        return free
    return tuple(
        left if left >= UNLIMITED else left - amount for left, amount in zip(free, taken, strict=True)
    )


def more(free: Amounts, returned: Amounts) -> Amounts:
    """Return the amounts with those that are returned; unlimited ones stay so."""
    if not returned:
        return free
    return tuple(
        left if left >= UNLIMITED else left + amount for left, amount in zip(free, returned, strict=True)
    )
