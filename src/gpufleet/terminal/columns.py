"""Columns of tables: how a value is read from a row and written in a cell."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

NONE = "-"
"""What a cell shows for a value that is missing."""


@dataclass(frozen=True)
class Column:
    """A column: its header, the value of a row, and how it is shown."""

    header: str
    value: Callable[[Any], Any]
    wide: bool = False
    """Shown with -o wide only."""
    live: bool = False
    """Changes all the time; does not count as a change for --watch."""
    text: Callable[[Any], str] | None = None
    """Writes the value; by default `cell`."""

    def cell(self, row: Any) -> str:
        """Return the text of the column in `row`."""
        value = self.value(row)
        return NONE if value is None else (self.text or cell)(value)


def cell(value: Any) -> str:
    """Return a value as text; lists with commas, an empty one as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or NONE
    return " ".join(str(value).split()) or NONE


def few(names: list[str]) -> str:
    """Return the first two names and how many more there are."""
    more = [f"+{len(names) - 2}"] if len(names) > 2 else []
    return ",".join([*names[:2], *more]) or NONE


def index_ranges(indexes: list[int]) -> str:
    """Return indexes with neighbours joined: 0-3,6."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or NONE


def percent(rate: float) -> str:
    """Return a rate from 0.0 to 1.0 in percent."""
    return f"{rate * 100:.0f}%"


def number(value: float) -> str:
    """Return a number without decimals."""
    return f"{value:,.0f}"


def short_model(model: str) -> str:
    """Return a model without its vendor: `H100_80GB_HBM3`."""
    for vendor in ("NVIDIA_", "AMD_Instinct_", "AMD_"):
        model = model.removeprefix(vendor)
    return model or NONE


def age(seconds: float) -> str:
    """Return a duration as kubectl writes it: 45s, 12m, 5h10m, 3d4h, 40d."""
    seconds = max(0, int(seconds))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if days < 2:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y{days % 365}d"


def since(moment: float | str | None) -> float | None:
    """Return the seconds since a time in Unix seconds or RFC 3339; None without one."""
    if not moment:
        return None
    at = datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else float(moment)
    return time.time() - at
