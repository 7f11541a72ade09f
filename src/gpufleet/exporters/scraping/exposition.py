"""Decode the metrics of one agent from the Prometheus text format.

Written by hand because the parser of prometheus-client takes nine times as long, which a thousand agents every 15
seconds do not leave. An agent writes the labels of a GPU in the same way on every line and in every answer, so each
set of labels is decoded once and remembered until it no longer occurs.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.known_exporters import AGENT
from gpufleet.exporters.labels import identify
from gpufleet.model.reading import Fault, GpuIdentity, GpuProcess, GpuRef, Quantity, TrainingPoint

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_QUANTITIES = {
    AGENT.prefix + metric.name: quantity for quantity, metrics in AGENT.metrics.items() for metric in metrics
}
_FAULTS = {AGENT.prefix + fault.name: fault for fault in AGENT.faults}
_PROCESSES = {AGENT.prefix + name: field for field, name in AGENT.processes.items()}
_TRAINING = "gpufleet_training"


@dataclass(frozen=True)
class LabelSet:
    """The labels of a line, and the GPU that they name."""

    values: Mapping[str, str]
    gpu: GpuIdentity | None


@dataclass
class AgentMetrics:
    """What one agent answered."""

    at: float
    gpus: dict[GpuRef, GpuIdentity] = field(default_factory=dict)
    values: dict[Quantity, dict[GpuRef, float]] = field(default_factory=dict)
    faults: dict[GpuRef, list[Fault]] = field(default_factory=dict)
    processes: list[GpuProcess] = field(default_factory=list)
    training: dict[str, list[TrainingPoint]] = field(default_factory=dict)
    """By the uid of the workload."""
    labels: dict[str, LabelSet] = field(default_factory=dict)
    """Every set of labels by its text, for the next answer."""


def decode(text: str, node: str, at: float, known: Mapping[str, LabelSet]) -> AgentMetrics:
    """Return the metrics of the agent of `node`. Raise MetricsUnavailable if the text is malformed.

    GPUs that claim to be of another node are left out. `known` are the labels of the previous answer.
    """
    found = AgentMetrics(at)
    processes: dict[str, dict[str, float]] = {}
    for line in text.split("\n"):
        name, brace, rest = line.partition("{")
        if not brace or name.startswith("#"):
            continue
        body, _, tail = rest.rpartition("}")
        if name in _QUANTITIES:
            labels = _labels(found, known, body)
            if labels.gpu is not None and labels.gpu.ref.node == node:
                found.gpus.setdefault(labels.gpu.ref, labels.gpu)
                column = found.values.setdefault(_QUANTITIES[name], {})
                column[labels.gpu.ref] = _sample(tail)[0]
        elif name in _PROCESSES:
            processes.setdefault(body, {})[_PROCESSES[name]] = _sample(tail)[0]
        elif name in _FAULTS:
            _add_fault(found, _labels(found, known, body), name, tail, node)
        elif name == _TRAINING:
            _add_training(found, _labels(found, known, body), tail)
    for body, fields in processes.items():
        _add_process(found, _labels(found, known, body), fields, node)
    return found


def _labels(found: AgentMetrics, known: Mapping[str, LabelSet], text: str) -> LabelSet:
    labels = found.labels.get(text)
    if labels is None:
        labels = found.labels[text] = known.get(text) or _decoded(text)
    return labels


def _decoded(text: str) -> LabelSet:
    values = {name: _unescaped(value) for name, value in _LABEL.findall(text)}
    return LabelSet(values, identify(AGENT, values))


def _unescaped(value: str) -> str:
    return (
        _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value) if "\\" in value else value
    )


def _sample(tail: str) -> tuple[float, float | None]:
    """Return the value and the time of a sample, in seconds."""
    try:
        parts = [float(part) for part in tail.split()]
        return parts[0], parts[1] / 1000 if len(parts) > 1 else None
    except (ValueError, IndexError):
        raise MetricsUnavailable(f"the agent returned a malformed sample: {tail[:80]!r}") from None


def _add_fault(found: AgentMetrics, labels: LabelSet, name: str, tail: str, node: str) -> None:
    fault, count = _FAULTS[name], _sample(tail)[0]
    code = labels.values.get(fault.code_label, "")
    if (
        labels.gpu is not None
        and labels.gpu.ref.node == node
        and count > 0
        and code.isdecimal()
        and int(code)
    ):
        found.faults.setdefault(labels.gpu.ref, []).append(Fault(fault.kind, int(code), count, found.at))


def _add_process(found: AgentMetrics, labels: LabelSet, fields: Mapping[str, float], node: str) -> None:
    values = labels.values
    if labels.gpu is None or labels.gpu.ref.node != node or not values.get("pid", "").isdecimal():
        return
    found.processes.append(
        GpuProcess(
            gpu=labels.gpu.ref,
            pid=int(values["pid"]),
            name=values.get("process_name", ""),
            user=values.get("user", ""),
            command=values.get("command", ""),
            gpu_memory_bytes=fields.get("gpu_memory"),
            cpu_percent=fields.get("cpu"),
            memory_percent=fields.get("memory"),
            time=found.at,
        )
    )


def _add_training(found: AgentMetrics, labels: LabelSet, tail: str) -> None:
    value, time = _sample(tail)
    values = labels.values
    workload, metric, rank = (values.get(name, "") for name in ("workload_uid", "metric", "rank"))
    if workload and metric and math.isfinite(value):
        point = TrainingPoint(
            metric,
            value,
            found.at if time is None else time,
            int(rank) if rank.isdecimal() else None,
            values.get("pod_uid", ""),
        )
        found.training.setdefault(workload, []).append(point)
