"""Convert the text of a flag or variable, or the value in a file, to a setting's type.

A ValueError says what the setting takes; the caller adds the name of the setting and the source of the value.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpufleet.runtime.settings.field import Setting
from gpufleet.runtime.settings.prices import TAKES as PRICES_TAKE
from gpufleet.runtime.settings.prices import Price, parse_prices

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def parse(setting: Setting, raw: object) -> Any:
    """Return the value of `raw`; raise ValueError with what the setting takes."""
    kind = setting.type
    if kind is bool:
        return _boolean(raw)
    if kind is int:
        return _bounded(setting, _integer(setting, raw))
    if kind is float:
        return _bounded(setting, _duration(raw) if setting.facts.unit == "s" else _number(setting, raw))
    if kind == tuple[str, ...]:
        return _texts(setting, raw)
    if kind == tuple[Price, ...]:
        return parse_prices(raw)
    if kind == Mapping[str, tuple[str, ...]]:
        return _lists_by_name(setting, raw)
    if kind == Path | None and raw == "":
        return None
    if kind in (Path | None, Path):
        return _path(raw)
    text = _text(raw)
    if setting.facts.choices and text not in setting.facts.choices:
        raise ValueError(takes(setting))
    return text


def takes(setting: Setting) -> str:
    """Return what the setting takes, as the object of "it takes"."""
    facts, kind = setting.facts, setting.type
    if facts.choices:
        return ("any of " if kind == tuple[str, ...] else "one of ") + ", ".join(facts.choices)
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number" + _limits(setting)
    if kind is float:
        return ("a duration such as 15s, 5m, 2h or 30d" if facts.unit == "s" else "a number") + _limits(
            setting
        )
    if kind == tuple[str, ...]:
        return "a list, separated by commas"
    if kind == tuple[Price, ...]:
        return PRICES_TAKE
    if kind == Mapping[str, tuple[str, ...]]:
        return "name=value pairs, separated by commas, one for each value; in the file a table of lists"
    if kind in (Path | None, Path):
        return "a path"
    return "text"


def amount(setting: Setting, value: float) -> str:
    """Return a number as text; a duration in the largest unit that divides it."""
    if setting.facts.unit != "s":
        return f"{value:g}" if value != int(value) else f"{int(value)}"
    for unit, seconds in sorted(_UNITS.items(), key=lambda item: -item[1]):
        count = value / seconds
        if count >= 1 and count.is_integer():
            return f"{int(count)}{unit}"
    return f"{value:.15g}s"


def default_text(setting: Setting) -> str:
    """Return the default as a user would write it; empty if there is none."""
    value: Any = setting.default
    if value is None or value == "" or value == () or value == {}:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{k}={v:g}" for k, v in value.items())
    if isinstance(value, float):
        return amount(setting, value)
    return str(value)


def _limits(setting: Setting) -> str:
    low, high = setting.facts.minimum, setting.facts.maximum
    if low is not None and high is not None:
        return f" from {amount(setting, low)} to {amount(setting, high)}"
    if low is not None:
        return f" of at least {amount(setting, low)}"
    if high is not None:
        return f" of at most {amount(setting, high)}"
    return ""


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("true or false")


def _integer(setting: Setting, raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError(takes(setting))
    try:
        return int(raw)
    except ValueError:
        raise ValueError(takes(setting)) from None


def _number(setting: Setting, raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError(takes(setting))
    try:
        return float(raw)
    except ValueError:
        raise ValueError(takes(setting)) from None


def _duration(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", str(raw))
    if not match:
        raise ValueError("a duration such as 15s, 5m, 2h or 30d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _bounded(setting: Setting, value: Any) -> Any:
    low, high = setting.facts.minimum, setting.facts.maximum
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(takes(setting))
    return value


def _texts(setting: Setting, raw: object) -> tuple[str, ...]:
    parts = raw if isinstance(raw, list) else str(raw).split(",")
    texts = tuple(_text(part).strip() for part in parts if str(part).strip())
    if setting.facts.choices and not set(texts) <= set(setting.facts.choices):
        raise ValueError(takes(setting))
    return texts


def _lists_by_name(setting: Setting, raw: object) -> dict[str, tuple[str, ...]]:
    if isinstance(raw, dict):
        if not all(isinstance(values, list) for values in raw.values()):
            raise ValueError(takes(setting))
        return {_text(name): tuple(map(_text, values)) for name, values in raw.items()}
    lists: dict[str, tuple[str, ...]] = {}
    for part in filter(str.strip, _text(raw).split(",")):
        name, is_pair, value = part.rpartition("=")
        if not is_pair or not name.strip() or not value.strip():
            raise ValueError(takes(setting))
        lists[name.strip()] = (*lists.get(name.strip(), ()), value.strip())
    return lists


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("text")
    if "\x00" in raw:
        raise ValueError("text without NUL bytes")
    return raw


def _path(raw: object) -> Path:
    if not _text(raw):
        raise ValueError("a path")
    try:
        return Path(_text(raw)).expanduser()
    except RuntimeError:  # ~ of an unknown user
        raise ValueError("a path; ~USER only for an existing user") from None
