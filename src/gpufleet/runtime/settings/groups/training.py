"""How training numbers are read from logs, and how many jobs may report."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class TrainingSettings:
    """How training numbers are read from logs, and how many jobs may report."""

    patterns: tuple[str, ...] = setting(
        (),
        "Additional log patterns: regular expressions whose named groups are metrics, "
        "such as `^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)`.",
    )
    max_points: int = setting(
        10_000_000,
        "Points stored for one workload (about 110 bytes each); more get status 413.",
        minimum=10_000,
    )
