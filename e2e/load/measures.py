"""What the processes tell of themselves: CPU time, phases of the extender, requests to the API server."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Requests:
    """One kind of request: who made it, how many, and how long the API server took over them in all."""

    client: str
    what: str
    number: int
    seconds: float


def cpu_seconds(pid: int | None) -> float:
    """The CPU time of a process so far."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def seconds_by_phase(url: str) -> dict[str, tuple[int, float]]:
    """How often each phase of the extender ran, and how long in all."""
    with urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, tuple[int, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name != "gpufleet_scheduler_phase_seconds":
            continue
        for sample in family.samples:
            phase = sample.labels.get("phase", "")
            number, seconds = found.get(phase, (0, 0.0))
            if sample.name.endswith("_sum"):
                found[phase] = (number, sample.value)
            elif sample.name.endswith("_count"):
                found[phase] = (int(sample.value), seconds)
    return found


def requests_since(audit: Iterable[dict[str, Any]]) -> list[Requests]:
    """Requests by client and kind, those that took longest in all first; watches are left out."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for each in audit:
        if each["verb"] == "watch" or each["stage"] != "ResponseComplete":
            continue
        about = each.get("objectRef", {})
        sub = f"/{about['subresource']}" if about.get("subresource") else ""
        client = each.get("userAgent", "").split("/")[0]
        key = (client, f"{each['verb']} {about.get('resource', each['requestURI'])}{sub}")
        took = datetime.fromisoformat(each["stageTimestamp"]) - datetime.fromisoformat(
            each["requestReceivedTimestamp"]
        )
        number, seconds = found.get(key, (0, 0.0))
        found[key] = (number + 1, seconds + took.total_seconds())
    rows = [Requests(client, what, *both) for (client, what), both in found.items()]
    return sorted(rows, key=lambda row: -row.seconds)
