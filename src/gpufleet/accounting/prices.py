"""Find the price of a GPU-hour by the model of the GPU, the source of the workload and the hour."""

from collections.abc import Sequence

from gpufleet.runtime.settings.prices import Price


def price_of(prices: Sequence[Price], model: str, source: str, hour: int) -> float:
    """Return the price in the hour that starts at `hour` Unix seconds; 0 without a matching entry.

    An entry for the model wins over one for every model, then one for the source over one for every source,
    then the latest start.
    """
    matching = [
        each
        for each in prices
        if each.start <= hour and each.model in ("", model) and each.source in ("", source)
    ]
    best = max(matching, key=lambda each: (bool(each.model), bool(each.source), each.start), default=None)
    return best.price if best else 0.0
