"""The processes on the GPUs, from exporters that tell of them.

One query says which processes there are and when each was sampled; one per field (memory on
the GPU, CPU, memory) adds what is known. A field whose query fails stays empty and is named.
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
    moment: QuerySnapshot, readers: Sequence[ExporterReader], native: Sequence[Mapping[GpuRef, GpuRef]]
) -> Processes:
    """All processes, each once: an exporter that stands earlier in the table wins."""
    rows: dict[tuple[GpuRef, int], GpuProcess] = {}
    errors: dict[str, str] = {}
    for reader, names in zip(readers, native, strict=True):
        if not reader.dialect.processes:
            continue
        labels = _labels(reader.dialect)
        seen = await moment.vector(_presence(reader.dialect, labels), labels)
        fields = await _read_fields(moment, reader.dialect, labels, errors)
        ours = {theirs: mine for mine, theirs in names.items()}
        for row in await moment.work(_rows, reader, labels, seen, fields, ours):
            rows.setdefault((row.gpu, row.pid), row)
    return Processes(tuple(rows[key] for key in sorted(rows)), errors)


async def _read_fields(
    moment: QuerySnapshot, dialect: DetectedExporter, labels: tuple[str, ...], errors: dict[str, str]
) -> dict[str, Mapping[Labels, float]]:
    queries = [moment.vector(by("max", labels, name), labels) for name in dialect.processes.values()]
    answers = await asyncio.gather(*queries, return_exceptions=True)
    fields: dict[str, Mapping[Labels, float]] = {}
    for field, answer in zip(dialect.processes, answers, strict=True):
        if isinstance(answer, MetricsUnavailable):
            errors[field] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            fields[field] = dict(zip(answer[0], answer[1].tolist(), strict=True))
    return fields


def _labels(dialect: DetectedExporter) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*identity_labels(dialect.vocabulary), *PROCESS_LABELS]))


def _presence(dialect: DetectedExporter, labels: tuple[str, ...]) -> str:
    return by("max", labels, either(f"timestamp({name})" for name in dialect.processes.values()))


def _rows(
    reader: ExporterReader,
    names: tuple[str, ...],
    seen: Vector,
    fields: Mapping[str, Mapping[Labels, float]],
    ours: Mapping[GpuRef, GpuRef],
) -> list[GpuProcess]:
    vocabulary = reader.dialect.vocabulary
    by_uuid = {gpu.uuid: gpu.ref for gpu in reader.roster.gpus if gpu.uuid and not gpu.ref.partition}
    rows = []
    for labels, time in zip(seen[0], seen[1].tolist(), strict=True):
        texts = {name: getattr(labels, name) for name in names}
        uuid = next((texts[name] for name in vocabulary.uuid if texts[name]), "")
        gpu = identify(vocabulary, texts)
        ref = by_uuid.get(canonical_uuid(uuid, vocabulary.vendor)) or (gpu.ref if gpu else None)
        if ref is None or not texts["pid"].isdecimal():
            continue
        values = {field: _sane(field, fields.get(field, {}).get(labels)) for field in _FIELDS}
        rows.append(
            GpuProcess(
                gpu=ours.get(ref, ref),
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


def _sane(field: str, value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= _LIMITS[field] else None
