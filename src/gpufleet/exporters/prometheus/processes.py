"""Read the processes on the GPUs, from exporters that report them.

One query returns the processes and when each was sampled; one query per field (GPU memory, CPU, memory)
adds the values. A field whose query fails stays empty and is listed in `errors`.
"""

import asyncio
from collections.abc import Mapping, Sequence

from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.detection import DetectedExporter
from gpufleet.exporters.known_exporters import PROCESS_LABELS
from gpufleet.exporters.labels import canonical_uuid, identify, identity_labels
from gpufleet.exporters.prometheus.exporter_reader import ExporterReader
from gpufleet.exporters.prometheus.promql import by, either
from gpufleet.exporters.prometheus.responses import Labels
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.reading import Column, GpuProcess, GpuRef, Processes

_FIELDS = ("gpu_memory", "cpu", "memory")
_LIMITS = {"gpu_memory": 1e14, "cpu": 1e6, "memory": 100.5}

Vector = tuple[list[Labels], Column]


async def read_processes(
    snapshot: QuerySnapshot, readers: Sequence[ExporterReader], native: Sequence[Mapping[GpuRef, GpuRef]]
) -> Processes:
    """Return all processes, each once; the exporter with the higher precedence wins."""
    rows: dict[tuple[GpuRef, int], GpuProcess] = {}
    errors: dict[str, str] = {}
    for reader, names in zip(readers, native, strict=True):
        if not reader.exporter.processes:
            continue
        labels = _labels(reader.exporter)
        seen = await snapshot.vector(_presence(reader.exporter, labels), labels)
        fields = await _read_fields(snapshot, reader.exporter, labels, errors)
        renamed = {own: ref for ref, own in names.items()}
        for row in await snapshot.work(_rows, reader, labels, seen, fields, renamed):
            rows.setdefault((row.gpu, row.pid), row)
    return Processes(tuple(rows[key] for key in sorted(rows)), errors)


async def _read_fields(
    snapshot: QuerySnapshot, exporter: DetectedExporter, labels: tuple[str, ...], errors: dict[str, str]
) -> dict[str, Mapping[Labels, float]]:
    queries = [snapshot.vector(by("max", labels, name), labels) for name in exporter.processes.values()]
    results = await asyncio.gather(*queries, return_exceptions=True)
    fields: dict[str, Mapping[Labels, float]] = {}
    for field, result in zip(exporter.processes, results, strict=True):
        if isinstance(result, MetricsUnavailable):
            errors[field] = str(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            fields[field] = dict(zip(result[0], result[1].tolist(), strict=True))
    return fields


def _labels(exporter: DetectedExporter) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*identity_labels(exporter.definition), *PROCESS_LABELS]))


def _presence(exporter: DetectedExporter, labels: tuple[str, ...]) -> str:
    return by("max", labels, either(f"timestamp({name})" for name in exporter.processes.values()))


def _rows(
    reader: ExporterReader,
    names: tuple[str, ...],
    seen: Vector,
    fields: Mapping[str, Mapping[Labels, float]],
    renamed: Mapping[GpuRef, GpuRef],
) -> list[GpuProcess]:
    definition = reader.exporter.definition
    by_uuid = {gpu.uuid: gpu.ref for gpu in reader.index.gpus if gpu.uuid and not gpu.ref.partition}
    rows = []
    for labels, time in zip(seen[0], seen[1].tolist(), strict=True):
        texts = {name: getattr(labels, name) for name in names}
        uuid = next((texts[name] for name in definition.uuid if texts[name]), "")
        gpu = identify(definition, texts)
        ref = by_uuid.get(canonical_uuid(uuid, definition.vendor)) or (gpu.ref if gpu else None)
        if ref is None or not texts["pid"].isdecimal():
            continue
        values = {field: _valid(field, fields.get(field, {}).get(labels)) for field in _FIELDS}
        rows.append(
            GpuProcess(
                gpu=renamed.get(ref, ref),
                pid=int(texts["pid"]),
                name=texts["process_name"] or texts["name"],
                user=texts["user"],
                command=texts["command"],
                gpu_memory_bytes=values["gpu_memory"],
                cpu_percent=values["cpu"],
                memory_percent=values["memory"],
                time=time,
            )
        )
    return rows


def _valid(field: str, value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= _LIMITS[field] else None
