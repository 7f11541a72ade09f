"""One measured figure beside its budget.

A figure is best given as a ratio to a baseline measured in the same run, because machines
are noisy and differ; an absolute budget is for what a user would notice.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """A figure: `value` in `unit`; the budget is met at or above `at_least`, at or under `at_most`."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the budget is kept (a figure without a budget always is)."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def budget(self) -> str:
        """The budget in words."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else "–"
