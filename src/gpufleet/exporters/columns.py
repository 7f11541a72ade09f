"""Arithmetic on columns of values: convert units, drop invalid values, derive quantities from others.

Works on arrays of any shape, so that the latest readings (one value per GPU) and ranges (a row of
values per GPU) share the same rules.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpufleet.exporters.known_exporters import Metric
from gpufleet.model.reading import Quantity

Values = NDArray[np.float64]

_MEMORY = (0.0, 1e14)
_ACTIVITY = (0.0, 1.0)
_TRAFFIC = (0.0, 1e14)
LIMITS: Mapping[Quantity, tuple[float, float]] = {
    Quantity.UTILIZATION: (0.0, 100.0),
    Quantity.MEMORY_USED: _MEMORY,
    Quantity.MEMORY_FREE: _MEMORY,
    Quantity.MEMORY_TOTAL: _MEMORY,
    Quantity.MEMORY_RESERVED: _MEMORY,
    Quantity.MEMORY_UTILIZATION: (0.0, 100.0),
    Quantity.TEMPERATURE: (-60.0, 250.0),
    Quantity.POWER: (0.0, 1e5),
    Quantity.POWER_LIMIT: (0.0, 1e5),
    Quantity.SM_CLOCK: (0.0, 1e11),
    Quantity.ENERGY: (0.0, 1e18),
    Quantity.TENSOR_ACTIVITY: _ACTIVITY,
    Quantity.DRAM_ACTIVITY: _ACTIVITY,
    Quantity.SM_ACTIVITY: _ACTIVITY,
    Quantity.FABRIC_SENT: _TRAFFIC,
    Quantity.FABRIC_RECEIVED: _TRAFFIC,
    Quantity.FABRIC_TRAFFIC: _TRAFFIC,
}
"""The valid range of each quantity; drivers write 65535 or 2^47 for "not supported"."""

_TOLERANCE = 1.005
"""Exporters round: 100.2 percent is 100."""
_CERTAINLY_PERCENT = 2.0

DERIVED: Mapping[Quantity, tuple[Quantity, ...]] = {
    Quantity.MEMORY_TOTAL: (Quantity.MEMORY_USED, Quantity.MEMORY_FREE, Quantity.MEMORY_RESERVED),
    Quantity.MEMORY_FREE: (Quantity.MEMORY_TOTAL, Quantity.MEMORY_USED),
    Quantity.MEMORY_UTILIZATION: (
        Quantity.MEMORY_USED,
        Quantity.MEMORY_TOTAL,
        Quantity.MEMORY_FREE,
        Quantity.MEMORY_RESERVED,
    ),
    Quantity.FABRIC_TRAFFIC: (Quantity.FABRIC_SENT, Quantity.FABRIC_RECEIVED),
}
"""Quantities that can be computed from others if there is no metric for them."""


def holds_percent(metric: Metric, values: Values) -> bool:
    """Return whether a metric that is named a ratio holds percent.

    Ignores "not supported" values such as 2^47, and ratios slightly above 1.
    """
    with np.errstate(invalid="ignore"):
        return bool(metric.ratio and ((values > _CERTAINLY_PERCENT) & (values <= 100 * _TOLERANCE)).any())


def to_quantity_unit(quantity: Quantity, metric: Metric, values: Values, percent: bool) -> Values:
    """Convert values to the quantity's unit. Invalid values become NaN."""
    scaled = values * (metric.scale / 100.0 if percent else metric.scale)
    low, high = LIMITS[quantity]
    with np.errstate(invalid="ignore"):
        kept = np.where((scaled >= low) & (scaled <= high * _TOLERANCE), scaled, np.nan)
    return np.minimum(kept, high)


def derive(quantity: Quantity, known: Mapping[Quantity, Values]) -> Values | None:
    """Compute the quantity from others, NaN where they don't suffice. Return None if no rule applies."""
    get = known.get
    used, free, total = get(Quantity.MEMORY_USED), get(Quantity.MEMORY_FREE), get(Quantity.MEMORY_TOTAL)
    if quantity is Quantity.MEMORY_TOTAL and used is not None and free is not None:
        reserved = get(Quantity.MEMORY_RESERVED)
        return used + free + (np.nan_to_num(reserved) if reserved is not None else 0.0)
    if quantity is Quantity.MEMORY_FREE and used is not None and total is not None:
        return np.maximum(total - used, 0.0)
    if quantity is Quantity.MEMORY_UTILIZATION and used is not None and total is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total > 0, np.minimum(100.0 * used / total, 100.0), np.nan)
    sent, received = get(Quantity.FABRIC_SENT), get(Quantity.FABRIC_RECEIVED)
    if quantity is Quantity.FABRIC_TRAFFIC and sent is not None and received is not None:
        return sent + received
    return None
