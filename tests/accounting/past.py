"""Past days: periods in the store, and a real Prometheus with the readings of that time."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.accounting.reference import Sample

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.store import Store

STEP = 300
SCRAPED_BEFORE = 7
"""Seconds between the scrape of a sample and the time at which it counts."""
PRICE = "3.5"
SETTINGS = f"""
[accounting]
label_keys = ["team"]
prices = {{ H200 = {PRICE} }}
"""
_NODES = {"a": 8, "b": 4}


@dataclass
class Past:
    """What happened in some hours from `first` on; all periods have ended."""

    first: int
    hours: int
    held: list[AllocationPeriod] = field(default_factory=list)
    capacities: list[CapacityPeriod] = field(default_factory=list)
    readings: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Percent by node, GPU and time."""

    @property
    def starts(self) -> range:
        return range(self.first, self.first + 3600 * self.hours, 3600)

    def samples(self, hour: int) -> list[Sample]:
        return [(n, g, at * 1000, v) for (n, g, at), v in self.readings.items() if hour <= at < hour + 3600]

    def scraped(self) -> list[Sample]:
        """Return all readings with the times at which they were scraped."""
        return [(n, g, (at - SCRAPED_BEFORE) * 1000, v) for (n, g, at), v in self.readings.items()]

    async def write(self, store: Store, cluster: str) -> None:
        """Store the periods as a server at that time would have."""
        await store.accounted.open(cluster, self.first)
        await store.capacity_periods.save(cluster, self.capacities)
        await store.allocation_periods.save(cluster, self.held)
        await store.accounted.set_stored_until(cluster, self.first + 3600.0 * self.hours)
        await store.observed.add(cluster, self.first, self.first + 3600.0 * self.hours)


def past(first: int, hours: int, seed: int = 1) -> Past:
    """Pods that come and go at any second on two nodes, and readings of all GPUs with a gap."""
    dice, found, end = random.Random(seed), Past(first, hours), first + 3600 * hours
    for node, gpus in _NODES.items():
        found.capacities.append(
            CapacityPeriod(node=node, gpus=gpus, model="H200", start=float(first), end=float(end))
        )
        for gpu in range(gpus):
            found.held += _tenants(dice, node, gpu, first, end)
            found.readings |= {
                (node, gpu, at): float(dice.choice((0, 3, 4, 5, 50, 80, 99, 100)))
                for at in range(first, end, STEP)
                if dice.random() > 0.02
            }
    return found


def _tenants(dice: random.Random, node: str, gpu: int, first: int, end: int) -> Iterable[AllocationPeriod]:
    at = float(first)
    while (at := at + dice.choice((0, 7, 300, 2000))) < end:
        until = min(float(end), round(at + dice.choice((9, 400, 3600, 9000)) + dice.random(), 3))
        name = f"{node}{gpu}-{at:.0f}"
        team = dice.choice(("nlp", "vision", ""))
        yield AllocationPeriod(
            pod_uid=f"pod-{name}",
            pod=name,
            namespace=dice.choice(("ml", "prod")),
            node=node,
            workload_uid=f"job-{name}",
            workload_kind="Job",
            workload_name=name,
            source="k8s",
            gpus=1,
            share=1.0,
            model="H200",
            held=(gpu,),
            labels={"team": team} if team else {},
            annotations={},
            start=at,
            end=until,
        )
        at = until


def openmetrics(parts: Sequence[tuple[str, Past]]) -> str:
    """Return the readings as OpenMetrics, with the metrics of dcgm-exporter or nvidia_gpu_exporter.

    Each sample was scraped a few seconds before the time at which it counts.
    """
    lines: dict[str, list[str]] = {}
    for exporter, part in parts:
        for (node, gpu, at), value in part.readings.items():
            if exporter == "dcgm":
                name, labels = "DCGM_FI_DEV_GPU_UTIL", f'Hostname="{node}",gpu="{gpu}"'
            else:
                name, labels = (
                    "nvidia_smi_utilization_gpu_ratio",
                    f'uuid="{node}{gpu}",instance="{node}:9835"',
                )
                info = f'nvidia_smi_gpu_info{{{labels},index="{gpu}",name="H200"}} 1 {at - SCRAPED_BEFORE}'
                lines.setdefault("nvidia_smi_gpu_info", []).append(info)
                value = value / 100
            lines.setdefault(name, []).append(f"{name}{{{labels}}} {value} {at - SCRAPED_BEFORE}")
    text = "".join(f"# TYPE {name} gauge\n" + "\n".join(rows) + "\n" for name, rows in lines.items())
    return text + "# EOF\n"
