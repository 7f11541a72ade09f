"""Parse the price list of accounting.

The short form is one price per GPU model, without dates:

    prices = { "NVIDIA H200" = 3.5 }

The long form is a list of entries. `model`, `source` and `from` narrow an entry down; all are optional:

    [[accounting.prices]]
    model = "NVIDIA H200"
    source = "slurm"
    from = 2026-07-01
    price = 3.1
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

SOURCES = ("k8s", "slurm", "docker", "local")
TAKES = "name=amount pairs, separated by commas; in the file also a list of {model, source, from, price}"

_FIELDS = ("model", "source", "from", "price")


@dataclass(frozen=True)
class Price:
    """The price of one GPU for one hour, in hours that start at `start` or later."""

    price: float
    model: str = ""
    """A GPU model; empty for every model."""
    source: str = ""
    """The source of the workload, such as k8s or slurm; empty for every source."""
    start: float = 0.0
    """Unix seconds."""


def prices_by_model(prices: Mapping[str, float]) -> tuple[Price, ...]:
    """Return the entries of the short form."""
    return tuple(Price(price, model) for model, price in prices.items())


def parse_prices(raw: object) -> tuple[Price, ...]:
    """Return the entries of either form; raise ValueError with what the setting takes."""
    if isinstance(raw, list):
        entries = tuple(_entry(each) for each in raw)
        keys = {(entry.model, entry.source, entry.start) for entry in entries}
        if len(keys) < len(entries):
            raise ValueError("one price for each model, source and from")
        return entries
    if isinstance(raw, dict):
        pairs: list[Any] = list(raw.items())
    else:
        pairs = [part.rsplit("=", 1) for part in str(raw).split(",") if part.strip()]
    if not all(len(pair) == 2 for pair in pairs):
        raise ValueError(TAKES)
    return prices_by_model({str(name).strip(): _amount(amount) for name, amount in pairs})


def _entry(raw: object) -> Price:
    if not isinstance(raw, dict) or not set(raw) <= set(_FIELDS) or "price" not in raw:
        raise ValueError(TAKES)
    model, source = raw.get("model", ""), raw.get("source", "")
    if not isinstance(model, str):
        raise ValueError(TAKES)
    if source not in ("", *SOURCES):
        raise ValueError(f"a source of {', '.join(SOURCES)}")
    return Price(_amount(raw["price"]), model.strip(), source, _start(raw.get("from", 0.0)))


def _amount(raw: object) -> float:
    try:
        amount = float(raw)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(TAKES) from None
    if isinstance(raw, bool) or not math.isfinite(amount) or amount < 0:
        raise ValueError(TAKES)
    return amount


def _start(raw: object) -> float:
    """Return a date or time in Unix seconds; UTC unless it has an offset."""
    if raw == 0.0:
        return 0.0
    refusal = "a date or time for from, such as 2026-07-01 or 2026-07-01T12:00:00Z"
    if isinstance(raw, str):
        try:
            raw = datetime.fromisoformat(raw)
        except ValueError:
            raise ValueError(refusal) from None
    if isinstance(raw, date) and not isinstance(raw, datetime):
        raw = datetime(raw.year, raw.month, raw.day)
    if not isinstance(raw, datetime):
        raise ValueError(refusal)
    return (raw if raw.tzinfo else raw.replace(tzinfo=UTC)).timestamp()
