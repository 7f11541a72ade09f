"""The columns of a FOCUS 1.2 file, with the types that a Parquet file gives them.

Columns that FOCUS requires only of providers with commitment discounts, capacity reservations, regions or a public
list of SKUs are left out, because gpufleet has none of these; only `CommitmentDiscountStatus` is there, always null,
because the rules of `ConsumedQuantity` refer to it. Names that start with `x_` are gpufleet's own.
"""

from typing import Literal, NamedTuple

VERSION = "1.2"


class Column(NamedTuple):
    """A column and the type of its values."""

    name: str
    type: Literal["text", "decimal", "time"] = "text"


COLUMNS = (
    Column("BilledCost", "decimal"),
    Column("BillingAccountId"),
    Column("BillingAccountName"),
    Column("BillingAccountType"),
    Column("BillingCurrency"),
    Column("BillingPeriodEnd", "time"),
    Column("BillingPeriodStart", "time"),
    Column("ChargeCategory"),
    Column("ChargeClass"),
    Column("ChargeDescription"),
    Column("ChargeFrequency"),
    Column("ChargePeriodEnd", "time"),
    Column("ChargePeriodStart", "time"),
    Column("CommitmentDiscountStatus"),
    Column("ConsumedQuantity", "decimal"),
    Column("ConsumedUnit"),
    Column("ContractedCost", "decimal"),
    Column("ContractedUnitPrice", "decimal"),
    Column("EffectiveCost", "decimal"),
    Column("InvoiceId"),
    Column("InvoiceIssuerName"),
    Column("ListCost", "decimal"),
    Column("ListUnitPrice", "decimal"),
    Column("PricingCategory"),
    Column("PricingQuantity", "decimal"),
    Column("PricingUnit"),
    Column("ProviderName"),
    Column("PublisherName"),
    Column("ResourceId"),
    Column("ResourceName"),
    Column("ResourceType"),
    Column("ServiceCategory"),
    Column("ServiceName"),
    Column("ServiceSubcategory"),
    Column("SubAccountId"),
    Column("SubAccountName"),
    Column("SubAccountType"),
    Column("Tags"),
    Column("x_EnergyKwh", "decimal"),
    Column("x_GpuModels"),
    Column("x_IdleGpuHours", "decimal"),
    Column("x_Namespace"),
    Column("x_Nodes"),
    Column("x_Source"),
    Column("x_WorkloadKind"),
    Column("x_WorkloadName"),
)
NAMES = tuple(column.name for column in COLUMNS)
