"""One measured figure beside its budget.

Prefer a ratio to a baseline measured in the same run, because machines differ and are noisy. Use an absolute
budget for what a user would notice.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """A figure in `unit`, with an optional budget: at least `at_least` or at most `at_most`."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the budget is met; always true without a budget."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def budget(self) -> str:
        """The budget as text."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else "–"
