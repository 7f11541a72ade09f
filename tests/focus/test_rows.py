"""The mapping from stored use to FOCUS rows: values, nulls, and sums without rounding drift."""

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import InvalidRequest
from gpufleet.focus import csv_file
from gpufleet.focus.columns import NAMES
from gpufleet.focus.rows import ChargeDay, check_currency, focus_rows
from gpufleet.model.charges import Amounts, WorkloadUse
from gpufleet.model.hours import GPU_HOUR, KILOWATT_HOUR

DAY = ChargeDay(
    cluster="prod",
    currency="EUR",
    month_start=datetime(2026, 10, 1, tzinfo=UTC),
    month_end=datetime(2026, 11, 1, tzinfo=UTC),
    start=datetime(2026, 10, 5, tzinfo=UTC),
    end=datetime(2026, 10, 6, tzinfo=UTC),
)
BERT = WorkloadUse(
    namespace="nlp",
    kind="PyTorchJob",
    name="bert",
    uid="u-1",
    source="k8s",
    labels={"team": "nlp", "a": 'quote "'},
    nodes=("node-1", "node-2"),
    models=("NVIDIA H200",),
    amounts=Amounts(
        allocated=12 * GPU_HOUR, idle=GPU_HOUR // 2, cost=Decimal("42"), energy=7 * KILOWATT_HOUR // 2
    ),
)
costs = st.floats(1e-9, 1e6).map(lambda value: Decimal(f"{value:.15g}"))
"""PostgreSQL keeps 15 digits of the cost of an hour."""
amounts = st.builds(
    Amounts,
    allocated=st.integers(1, 24 * 64 * GPU_HOUR),
    idle=st.just(0),
    cost=costs,
    energy=st.none() | st.integers(0, 10**15),
)


def table(rows: list[dict[str, str | Decimal | datetime | None]]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((csv_file.header() + csv_file.encode(rows)).decode())))


def exact_sum(values: Iterable[Decimal]) -> Decimal:
    with localcontext() as context:
        context.prec = 400
        return sum(values, Decimal(0))


def use(amounts: Amounts, number: int = 0) -> WorkloadUse:
    return msgspec.structs.replace(BERT, amounts=amounts, uid=f"u-{number}")


def test_a_day_of_a_workload_is_one_row_with_the_formats_of_focus() -> None:
    [row] = table(list(focus_rows(DAY, [BERT], BERT.amounts)))
    assert tuple(row) == NAMES
    assert row["BilledCost"] == row["EffectiveCost"] == row["ListCost"] == row["ContractedCost"] == "42"
    assert (row["ConsumedQuantity"], row["PricingUnit"], row["ListUnitPrice"]) == ("12", "GPU-Hours", "3.5")
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (
        "2026-10-01T00:00:00Z",
        "2026-11-01T00:00:00Z",
    )
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == (
        "2026-10-05T00:00:00Z",
        "2026-10-06T00:00:00Z",
    )
    assert (row["ResourceId"], row["ResourceType"], row["SubAccountId"]) == ("u-1", "PyTorchJob", "nlp")
    assert msgspec.json.decode(row["Tags"]) == BERT.labels
    assert (row["x_GpuModels"], row["x_Nodes"]) == ("NVIDIA H200", "node-1, node-2")
    assert (row["x_EnergyKwh"], row["x_IdleGpuHours"]) == ("3.5", "0.5")
    assert row["ChargeClass"] == ""


def test_use_without_a_workload_row_is_a_row_without_a_resource() -> None:
    total = Amounts(allocated=15 * GPU_HOUR, idle=GPU_HOUR, cost=Decimal("52.5"))
    rest = table(list(focus_rows(DAY, [BERT], total)))[1]
    assert (rest["BilledCost"], rest["ConsumedQuantity"]) == ("10.5", "3")
    assert {rest[name] for name in ("ResourceId", "ResourceName", "SubAccountId", "Tags", "x_EnergyKwh")} == {
        ""
    }


def test_text_is_no_formula_and_unknown_nodes_are_null() -> None:
    job = msgspec.structs.replace(BERT, source="slurm", name="=cmd()", nodes=(), models=())
    [row] = table(list(focus_rows(DAY, [job], job.amounts)))
    assert row["x_Source"] == "slurm"
    assert row["ResourceName"] == "'=cmd()"
    assert (row["x_GpuModels"], row["x_Nodes"]) == ("", "")


@given(st.lists(amounts, max_size=40), amounts)
def test_the_rows_of_a_day_add_up_to_its_total(parts: list[Amounts], excluded: Amounts) -> None:
    everything = [*parts, excluded]
    known = [each.energy for each in everything if each.energy is not None]
    total = Amounts(
        allocated=sum(each.allocated for each in everything),
        idle=0,
        cost=exact_sum(each.cost for each in everything),
        energy=sum(known) if known else None,
    )
    rows = table(list(focus_rows(DAY, [use(part, n) for n, part in enumerate(parts)], total)))
    for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
        assert sum((Fraction(row[name]) for row in rows), Fraction()) == Fraction(total.cost)
    hours = sum(Decimal(row["ConsumedQuantity"]) for row in rows)
    assert abs(hours - Decimal(total.allocated) / GPU_HOUR) < Decimal("1e-10")


@given(amounts)
def test_quantity_times_unit_price_is_the_cost(one: Amounts) -> None:
    [row] = table(list(focus_rows(DAY, [use(one)], one)))
    product = Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
    # A price that differs from the mean by less than 1e-9 is taken as the listed one.
    tolerance = Decimal("1e-9") * max(one.cost, Decimal(row["PricingQuantity"]), Decimal(1))
    assert one.allocated < GPU_HOUR // 1000 or abs(product - one.cost) <= tolerance


@pytest.mark.parametrize("currency", ["", "credits", "usd", "USD\n"])
def test_a_currency_that_is_no_iso_code_is_refused_with_the_setting(currency: str) -> None:
    with pytest.raises(InvalidRequest, match=r"accounting\.currency of cluster prod"):
        check_currency("prod", currency)
