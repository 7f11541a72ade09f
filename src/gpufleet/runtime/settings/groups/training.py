"""How training numbers are read from the logs of jobs."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class TrainingSettings:
    """How training numbers are read from the logs of jobs."""

    patterns: tuple[str, ...] = setting(
        (),
        "Additional log patterns: regular expressions whose named groups are metrics, "
        "such as `^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)`.",
    )
