"""What is logged, and in which format."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class LogSettings:
    """What is logged, and in which format."""

    level: str = setting(
        "info",
        "Lowest level that is logged.",
        flag="--log-level",
        env=["LOG_LEVEL"],
        choices=["debug", "info", "warning", "error"],
    )
    format: str = setting(
        "auto",
        "console for people, json for log collectors; auto uses console at a terminal.",
        flag="--log-format",
        choices=["auto", "console", "json"],
    )
