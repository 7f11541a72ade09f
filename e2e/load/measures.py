"""Measure CPU time, phases of the extender and requests to the API server."""

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
    """One kind of request of one client: the number and the total time in the API server."""

    client: str
    what: str
    number: int
    seconds: float


def cpu_seconds(pid: int | None) -> float:
    """Return the CPU time of a process so far."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def seconds_by_phase(url: str) -> dict[str, tuple[int, float]]:
    """Return the number of runs and the total time of each phase of the extender."""
    with urlopen(url, timeout=10) as response:
        text = response.read().decode()
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
    """Group requests by client and kind, the longest total time first; skip watches."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for each in audit:
        if each["verb"] == "watch" or each["stage"] != "ResponseComplete":
            continue
        target = each.get("objectRef", {})
        sub = f"/{target['subresource']}" if target.get("subresource") else ""
        client = each.get("userAgent", "").split("/")[0]
        key = (client, f"{each['verb']} {target.get('resource', each['requestURI'])}{sub}")
        took = datetime.fromisoformat(each["stageTimestamp"]) - datetime.fromisoformat(
            each["requestReceivedTimestamp"]
        )
        number, seconds = found.get(key, (0, 0.0))
        found[key] = (number + 1, seconds + took.total_seconds())
    rows = [Requests(client, what, *both) for (client, what), both in found.items()]
    return sorted(rows, key=lambda row: -row.seconds)
