"""What an alert and a recording rule consist of.

Expressions and texts contain placeholders such as `<<server>>`. The plain files get the values of `PLAIN`; the charts
get Helm expressions (`mixin/charts.py`), so that they select the series of their own release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PLAIN = {
    "server": 'job="gpufleet"',
    "scheduler": 'job="gpu-scheduler"',
    "agent": 'job="gpu-agent"',
    "idleAfter": "1h",
    "snapshotsLateAfter": "900",
    "runbooks": "docs/runbooks",
}
"""Placeholders in the plain files, which expect these names of scrape jobs."""

Series = Mapping[str, str]
"""Values of time series in promtool's notation, one per minute."""


@dataclass(frozen=True)
class Firing:
    """Series with which an alert fires at a minute, with its labels and the text of its value."""

    series: Series
    minute: int
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""


@dataclass(frozen=True)
class Alert:
    """An alert, and series with which it fires and with which it does not."""

    name: str
    expr: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    description: str
    firing: Firing
    quiet: Series
    """Series with which it does not fire at the same minute."""
    hold: str = ""
    """How long the expression must hold before the alert fires."""


@dataclass(frozen=True)
class Recording:
    """A recording rule."""

    record: str
    expr: str


@dataclass(frozen=True)
class Group:
    """Rules that one chart creates together."""

    name: str
    chart: Literal["gpufleet", "gpu-scheduler"]
    alerts: tuple[Alert, ...] = ()
    recordings: tuple[Recording, ...] = ()
    condition: str = ""
    """A value of the chart that must be true."""


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return `text` with its placeholders replaced."""
    for name, value in values.items():
        text = text.replace(f"<<{name}>>", value)
    return text
