"""The views of `top`: what each fetches, and its columns.

A view fetches few requests however large the fleet is: GPUs come from the map, which the server encodes once for all
callers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from gpufleet.client import AsyncClient, calls, types
from gpufleet.terminal.columns import Column, age, number, percent, short_model, since
from gpufleet.terminal.resources import resource_of
from gpufleet.terminal.top.history import History
from gpufleet.terminal.waiting import START, Waiting, no_queue_off_kubernetes, with_estimates

MARKS = {
    "f": "free",
    "h": "held",
    "x": "unhealthy",
    "c": "cordoned",
    "u": "unknown",
    "d": "draining",
    "p": "perhaps-held",
}
MAX_WORKLOADS = 1000
"""Running workloads that are listed; the largest first."""


@dataclass(frozen=True, slots=True)
class MapGpu:
    """A GPU of the maps."""

    node: str
    index: int
    model: str
    status: str
    utilization: float | None
    memory: float | None
    temperature: float | None
    power: float | None

    @property
    def name(self) -> str:
        """NODE/INDEX."""
        return f"{self.node}/{self.index}"


@dataclass
class ModelSum:
    """The GPUs of one model."""

    model: str
    nodes: int = 0
    gpus: int = 0
    held: int = 0
    free: int = 0
    unhealthy: int = 0
    busy: float = 0.0
    measured: int = 0

    @property
    def utilization(self) -> float | None:
        """Mean over the held GPUs with a reading, 0.0 to 1.0."""
        return self.busy / self.measured if self.measured else None


@dataclass
class View:
    """A table: its rows by name and how they are fetched."""

    title: str
    columns: tuple[Column, ...]
    fetch: Callable[[AsyncClient], Awaitable[list[Any]]]
    key: Callable[[Any], str]
    sort: str
    """The column that it is sorted by at the start; with a minus in descending order."""
    history: History = field(default_factory=History)
    rate: Callable[[Any], float | None] | None = None
    """What its trend shows."""

    async def rows(self, client: AsyncClient) -> list[Any]:
        """Fetch the rows and record their trends."""
        found = await self.fetch(client)
        if self.rate is not None:
            rate = self.rate
            self.history.record((self.key(row), rate(row)) for row in found)
        return found


async def fetch_gpus(client: AsyncClient) -> list[MapGpu]:
    """Return all GPUs from the maps of four quantities."""
    maps = await asyncio.gather(
        client.gpu_map(quantity="utilization"),
        client.gpu_map(quantity="memory"),
        client.gpu_map(quantity="temperature"),
        client.gpu_map(quantity="power"),
    )
    first = maps[0]
    columns = [found.values if found.nodes == first.nodes else [] for found in maps]
    utilization, memory, temperature, power = columns
    return [
        MapGpu(
            node,
            index,
            model,
            MARKS.get(mark, mark),
            _rate(utilization, at),
            _rate(memory, at),
            _at(temperature, at),
            _at(power, at),
        )
        for at, (node, index, model, mark) in enumerate(_gpus(first))
    ]


def _gpus(found: types.GpuMap) -> list[tuple[str, int, str, str]]:
    nodes = [
        (node, found.models[found.model_of[place]])
        for place, node in enumerate(found.nodes)
        for _ in range(found.counts[place])
    ]
    return [
        (node, index, model, mark)
        for (node, model), index, mark in zip(nodes, found.indexes, found.marks, strict=True)
    ]


def _at(values: list[int | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


def _rate(values: list[int | None], place: int) -> float | None:
    value = _at(values, place)
    return None if value is None else value / 100


async def fetch_models(client: AsyncClient) -> list[ModelSum]:
    """Return the GPUs summed by model."""
    found = await client.gpu_map(quantity="utilization")
    sums: dict[str, ModelSum] = {}
    nodes: set[str] = set()
    for place, (node, _, model, mark) in enumerate(_gpus(found)):
        total = sums.setdefault(model, ModelSum(model))
        total.gpus += 1
        total.nodes += node not in nodes
        nodes.add(node)
        total.held += mark in "hp"
        total.free += mark == "f"
        total.unhealthy += mark == "x"
        value = found.values[place]
        if mark == "h" and value is not None:
            total.measured += 1
            total.busy += value / 100
    return list(sums.values())


async def fetch_nodes(client: AsyncClient) -> list[types.NodeRow]:
    """Return all nodes."""
    return [row async for row in client.nodes()]


async def fetch_running(client: AsyncClient) -> list[types.Consumer]:
    """Return the workloads that hold GPUs, the largest first."""
    found: list[types.Consumer] = []
    async for row in client.consumers():
        found.append(row)
        if len(found) == MAX_WORKLOADS:
            break
    return found


async def fetch_queue(client: AsyncClient) -> list[Waiting]:
    """Return the workloads that wait."""
    rows = [row async for row in client.workloads(status="Pending")]
    units: list[types.QueuedUnit] = []
    with no_queue_off_kubernetes():
        units = (await client.get(calls.list_queue())).data
    return with_estimates(rows, units)


def _bar(rate: float) -> str:
    filled = round(rate * 10)
    return "█" * filled + "·" * (10 - filled) + f" {rate * 100:3.0f}%"


def _with_trend(
    columns: tuple[Column, ...], history: History, key: Callable[[Any], str]
) -> tuple[Column, ...]:
    return (*columns, Column("TREND", lambda row: history.trend(key(row)), text=str))


def make_views() -> list[View]:
    """Return the views in the order of their keys 1 to 5."""
    models, nodes, gpus, workloads = History(), History(), History(), History()
    return [
        View(
            "Fleet",
            _with_trend(
                (
                    Column("MODEL", lambda row: row.model, text=short_model),
                    Column("NODES", lambda row: row.nodes),
                    Column("GPUS", lambda row: row.gpus),
                    Column("HELD", lambda row: row.held),
                    Column("FREE", lambda row: row.free),
                    Column("BAD", lambda row: row.unhealthy),
                    Column("UTIL", lambda row: row.utilization, text=_bar),
                ),
                models,
                lambda row: str(row.model),
            ),
            fetch_models,
            key=lambda row: str(row.model),
            sort="-GPUS",
            history=models,
            rate=lambda row: row.utilization,
        ),
        View(
            "Nodes",
            _with_trend(
                tuple(column for column in resource_of("nodes").columns if not column.wide),
                nodes,
                lambda row: str(row.name),
            ),
            fetch_nodes,
            key=lambda row: str(row.name),
            sort="NAME",
            history=nodes,
            rate=lambda row: row.utilization,
        ),
        View(
            "GPUs",
            _with_trend(
                (
                    Column("NAME", lambda gpu: gpu.name),
                    Column("MODEL", lambda gpu: gpu.model, text=short_model),
                    Column("STATUS", lambda gpu: gpu.status),
                    Column("UTIL", lambda gpu: gpu.utilization, text=percent),
                    Column("MEM", lambda gpu: gpu.memory, text=percent),
                    Column("TEMP", lambda gpu: gpu.temperature, text=number),
                    Column("POWER", lambda gpu: gpu.power, text=lambda watt: f"{watt:.0f}W"),
                ),
                gpus,
                lambda gpu: str(gpu.name),
            ),
            fetch_gpus,
            key=lambda gpu: str(gpu.name),
            sort="-UTIL",
            history=gpus,
            rate=lambda gpu: gpu.utilization,
        ),
        View(
            "Workloads",
            _with_trend(
                (
                    Column("NAMESPACE", lambda row: row.namespace),
                    Column("NAME", lambda row: row.name),
                    Column("KIND", lambda row: row.kind),
                    Column("GPUS", lambda row: row.stat.gpu_request),
                    Column("UTIL", lambda row: row.stat.gpu_utilization, text=percent),
                ),
                workloads,
                lambda row: str(row.uid),
            ),
            fetch_running,
            key=lambda row: str(row.uid),
            sort="-GPUS",
            history=workloads,
            rate=lambda row: row.stat.gpu_utilization,
        ),
        View(
            "Queue",
            (
                Column("NAMESPACE", lambda row: row.namespace),
                Column("NAME", lambda row: row.name),
                Column("GPUS", lambda row: row.gpu_requested),
                Column("MODEL", lambda row: row.gpu_model_requested, text=short_model),
                Column("WAITS", lambda row: since(row.start_at), text=age),
                START,
                Column("REASON", lambda row: row.waiting_reason.removeprefix("Pending: ")),
            ),
            fetch_queue,
            key=lambda row: str(row.uid),
            sort="-WAITS",
        ),
    ]
