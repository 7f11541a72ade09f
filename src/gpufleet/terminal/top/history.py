"""The last values of each row, as a line of block characters."""

from collections import deque
from collections.abc import Iterable

LENGTH = 12
_BLOCKS = "▁▂▃▄▅▆▇█"


class History:
    """The last values by name; names that are not seen any more are forgotten."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length
        self._values: dict[str, deque[float | None]] = {}

    def record(self, values: Iterable[tuple[str, float | None]]) -> None:
        """Add the newest value of each name."""
        kept: dict[str, deque[float | None]] = {}
        for name, value in values:
            line = self._values.get(name)
            kept[name] = line if line is not None else deque(maxlen=self._length)
            kept[name].append(value)
        self._values = kept

    def trend(self, name: str) -> str:
        """Return the values of `name`, oldest first; a space where there was none."""
        return sparkline(self._values.get(name, ()))


def sparkline(rates: Iterable[float | None]) -> str:
    """Return rates from 0.0 to 1.0 as block characters."""
    highest = len(_BLOCKS) - 1
    return "".join(
        " " if rate is None else _BLOCKS[round(min(max(rate, 0.0), 1.0) * highest)] for rate in rates
    )
