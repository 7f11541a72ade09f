"""What one workload used in a charge period: the input of billing exports."""

from decimal import Decimal

import msgspec


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time in millisecond-millionths (see `GPU_HOUR`), cost in the cluster's currency, energy in millijoules."""

    allocated: int = 0
    idle: int = 0
    cost: Decimal = Decimal(0)
    energy: int | None = None
    """None without a reading of power."""


class WorkloadUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one workload on one day. A workload whose labels changed has several."""

    namespace: str
    kind: str
    name: str
    uid: str
    source: str
    labels: dict[str, str]
    nodes: tuple[str, ...] = ()
    """Sorted; empty if the allocation periods of the day were pruned."""
    models: tuple[str, ...] = ()
    """GPU models, like `nodes`."""
    amounts: Amounts
