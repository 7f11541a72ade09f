"""Map the daily use of workloads to rows of a FOCUS file.

Pure. One row is the use of one workload on one day. Costs keep all their digits, so that the rows of a month add up to
the month's report. Use that belongs to no workload row (excluded namespaces) is one row per day without a resource,
computed as the difference to the cluster. GPUs that nobody allocated cost nothing and have no row.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, localcontext

import msgspec

from gpufleet.errors import InvalidRequest
from gpufleet.model.charges import Amounts, WorkloadUse
from gpufleet.model.hours import GPU_HOUR, KILOWATT_HOUR

Row = dict[str, str | Decimal | datetime | None]
"""A value for each column; a missing column is null."""

UNIT = "GPU-Hours"
_PROVIDER = "gpufleet"
_QUANTITY = Decimal("1e-12")
_DIGITS = 60
"""More than any sum of costs has; the default of 28 would round."""


class ChargeDay(msgspec.Struct, frozen=True, kw_only=True):
    """What all rows of one day have in common."""

    cluster: str
    currency: str
    month_start: datetime
    month_end: datetime
    start: datetime
    end: datetime


def check_currency(cluster: str, currency: str) -> None:
    """Raise InvalidRequest unless `currency` is an ISO 4217 code, which FOCUS requires."""
    if not re.fullmatch("[A-Z]{3}", currency):
        given = f"is {currency!r}" if currency else "is not set"
        raise InvalidRequest(
            f"accounting.currency of cluster {cluster} {given}; FOCUS takes an ISO 4217 code such as USD"
        )


def focus_rows(day: ChargeDay, uses: Sequence[WorkloadUse], total: Amounts) -> Iterator[Row]:
    """Yield the rows of a day; `total` is what the caller may see of the cluster's use on that day."""
    for use in uses:
        yield _common(day, use.amounts) | _resource(day, use)
    rest = _remainder(total, [use.amounts for use in uses])
    if rest.allocated:
        described = f"GPU use in namespaces without statistics of their own, cluster {day.cluster}"
        yield _common(day, rest) | {"ChargeDescription": described}


def _remainder(total: Amounts, parts: Sequence[Amounts]) -> Amounts:
    """Return what `parts` leave of `total`."""
    known = [part.energy for part in parts if part.energy is not None]
    with localcontext() as context:
        context.prec = _DIGITS
        cost = total.cost - sum((part.cost for part in parts), Decimal(0))
    return Amounts(
        allocated=total.allocated - sum(part.allocated for part in parts),
        idle=total.idle - sum(part.idle for part in parts),
        cost=cost,
        energy=None if total.energy is None else total.energy - sum(known),
    )


def _common(day: ChargeDay, amounts: Amounts) -> Row:
    quantity = (Decimal(amounts.allocated) / GPU_HOUR).quantize(_QUANTITY)
    price = _unit_price(amounts)
    return {
        "BilledCost": amounts.cost,
        "EffectiveCost": amounts.cost,
        "ContractedCost": amounts.cost,
        "ListCost": amounts.cost,
        "ContractedUnitPrice": price,
        "ListUnitPrice": price,
        "BillingAccountId": day.cluster,
        "BillingAccountName": day.cluster,
        "BillingAccountType": "Cluster",
        "BillingCurrency": day.currency,
        "BillingPeriodStart": day.month_start,
        "BillingPeriodEnd": day.month_end,
        "ChargePeriodStart": day.start,
        "ChargePeriodEnd": day.end,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": quantity,
        "ConsumedUnit": UNIT,
        "PricingQuantity": quantity,
        "PricingUnit": UNIT,
        "PricingCategory": "Standard",
        "ProviderName": _PROVIDER,
        "PublisherName": _PROVIDER,
        "InvoiceIssuerName": _PROVIDER,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "ServiceSubcategory": "Other (Compute)",
        "x_IdleGpuHours": (Decimal(amounts.idle) / GPU_HOUR).quantize(_QUANTITY),
        "x_EnergyKwh": None
        if amounts.energy is None
        else (Decimal(amounts.energy) / KILOWATT_HOUR).quantize(_QUANTITY),
    }


def _resource(day: ChargeDay, use: WorkloadUse) -> Row:
    models = ", ".join(use.models)
    return {
        "ChargeDescription": f"{models or 'GPU'} use of {use.kind} {use.namespace}/{use.name}",
        "ResourceId": use.uid or f"{day.cluster}/{use.namespace}/{use.kind}/{use.name}",
        "ResourceName": use.name,
        "ResourceType": use.kind,
        "SubAccountId": use.namespace,
        "SubAccountName": use.namespace,
        "SubAccountType": "Namespace",
        "Tags": _tags(use.labels),
        "x_GpuModels": models or None,
        "x_Namespace": use.namespace,
        "x_Nodes": ", ".join(use.nodes) or None,
        "x_Source": use.source,
        "x_WorkloadKind": use.kind,
        "x_WorkloadName": use.name,
    }


def _unit_price(amounts: Amounts) -> Decimal:
    """Return the price of a GPU-hour; the mean if GPUs of several prices were used."""
    if not amounts.allocated:
        return Decimal(0)
    with localcontext() as context:
        context.prec = _DIGITS
        mean = amounts.cost * GPU_HOUR / amounts.allocated
        listed = round(mean, 6)  # prices are whole millionths
        return listed if abs(mean - listed) < Decimal("1e-9") else mean.quantize(_QUANTITY)


def _tags(labels: Mapping[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(labels.items()))).decode()
