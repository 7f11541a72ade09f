"""What was done and what was seen, as a table that the run's summary prints."""

from dataclasses import dataclass, field


@dataclass
class Observations:
    """The lines of one journey; tests write them, the summary shows them."""

    title: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, done: str, seen: object) -> None:
        """Note what was done and what was seen then."""
        self.lines.append((done, " ".join(str(seen).split())))

    def table(self, width: int = 118) -> list[str]:
        """The lines in two columns, cut to `width`."""
        left = min(max((len(done) for done, _ in self.lines), default=0), 56)
        return [f"  {done:<{left}}  {seen}"[:width] for done, seen in self.lines]
