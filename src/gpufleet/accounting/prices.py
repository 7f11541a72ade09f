"""Find the price of a GPU-hour by the model of the GPU, the source of the workload and the hour."""

from collections.abc import Sequence

from gpufleet.model.gpu_models import accepted_models, canonical_model
from gpufleet.runtime.settings.prices import Price


def price_of(prices: Sequence[Price], model: str, source: str, hour: int) -> float:
    """Return the price in the hour that starts at `hour` Unix seconds; 0 without a matching entry.

    Models match in any spelling. An entry for exactly this model wins over one for all of its forms, and that
    over one for every model; then an entry for the source wins over one for every source, then the latest start.
    """
    billed = canonical_model(model)
    ranked = [
        ((_exactness(each.model, billed), bool(each.source), each.start), each.price)
        for each in prices
        if each.start <= hour and each.source in ("", source) and _exactness(each.model, billed) >= 0
    ]
    return max(ranked, default=(None, 0.0), key=lambda found: found[0])[1]


def _exactness(wanted: str, model: str) -> int:
    """Return 2 for exactly the model, 1 for a short name of it, 0 for every model, -1 for another one."""
    if not wanted:
        return 0
    if canonical_model(wanted) == model:
        return 2
    return 1 if model in accepted_models(wanted) else -1
