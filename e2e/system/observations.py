"""A table of what a test did and observed, printed in the summary of the run."""

from dataclasses import dataclass, field


@dataclass
class Observations:
    """The observations of one test."""

    title: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, step: str, observed: object) -> None:
        """Add a row: what the test did, and what it observed then."""
        self.lines.append((step, " ".join(str(observed).split())))

    def table(self, width: int = 118) -> list[str]:
        """Return the rows in two columns, cut to `width`."""
        left = min(max((len(step) for step, _ in self.lines), default=0), 56)
        return [f"  {step:<{left}}  {observed}"[:width] for step, observed in self.lines]
