"""Mean, extremes and percentiles of many groups at once, in integers.

One sort by group and value makes every group a slice of the sorted column. A percentile is the linear
interpolation between two adjacent values. All sums are integers with one division at the end, so
that the result does not depend on the order.
"""

import numpy as np
from numpy.typing import NDArray

from gpufleet.model.hours import PERCENT, Distribution

Ints = NDArray[np.int64]


def sums(groups: Ints, amounts: Ints, count: int) -> Ints:
    """Return the sum of the amounts of each group 0 … count-1."""
    totals = np.zeros(count, dtype=np.int64)
    np.add.at(totals, groups, amounts)
    return totals


def divide_rounded(numerator: Ints, denominator: Ints) -> Ints:
    """Divide integers and round halves up; 0 where the denominator is 0."""
    safe = np.where(denominator > 0, denominator, 1)
    whole, rest = np.divmod(numerator, safe)
    return np.where(denominator > 0, whole + (2 * rest >= safe), 0)


def distributions(
    groups: Ints, values: Ints, weights: Ints, count: int, lowest: Ints, highest: Ints
) -> list[Distribution]:
    """Return the distribution of the values of each group; only the mean is weighted.

    `lowest` and `highest` are the extremes that each value stands for.
    """
    order = np.lexsort((values, groups))
    ordered = values[order]
    number = np.bincount(groups, minlength=count).astype(np.int64)
    first = np.cumsum(number) - number
    mean = divide_rounded(sums(groups, values * weights, count), sums(groups, weights, count))
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(low, groups, lowest)
    np.maximum.at(high, groups, highest)
    found = []
    for group in range(count):
        samples = int(number[group])
        if not samples:
            found.append(Distribution())
            continue
        at = int(first[group])
        found.append(
            Distribution(
                samples=samples,
                mean=int(mean[group]) / PERCENT,
                highest=int(high[group]) / PERCENT,
                lowest=int(low[group]) / PERCENT,
                p50=_percentile(ordered, at, samples, 50),
                p95=_percentile(ordered, at, samples, 95),
            )
        )
    return found


def _percentile(ordered: Ints, first: int, samples: int, percent: int) -> float:
    below, rest = divmod((samples - 1) * percent, 100)
    low = int(ordered[first + below])
    high = int(ordered[first + below + 1]) if rest else low
    return (low * (100 - rest) + high * rest) / (100 * PERCENT)


def by_moment(
    groups: Ints, columns: Ints, values: Ints, weights: Ints, count: int, moments: int
) -> list[Distribution]:
    """Return the distribution over time of each group's weighted mean at each moment of the hour.

    The overall mean is weighted by what was allocated at each moment, so that groups add up.
    """
    cells = groups * moments + columns
    weight = sums(cells, weights, count * moments)
    mean = divide_rounded(sums(cells, values * weights, count * moments), weight)
    present = np.flatnonzero(weight)
    means = mean[present]
    found = distributions(present // max(1, moments), means, weight[present], count, means, means)
    exact = divide_rounded(sums(groups, values * weights, count), sums(groups, weights, count))
    return [
        Distribution(s.samples, int(exact[g]) / PERCENT, s.highest, s.lowest, s.p50, s.p95)
        if s.samples
        else s
        for g, s in enumerate(found)
    ]
