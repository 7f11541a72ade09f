"""Find the GPU and its user from the labels of an exporter's series.

Pure functions over one set of labels. Labels without a node or an index give None: a reading of an
unknown GPU is dropped, not guessed.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from gpufleet.exporters.known_exporters import NODE_LABELS, ExporterDefinition
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.reading import GpuIdentity, GpuRef, GpuUser

Labels = Mapping[str, str]

_PORT = re.compile(r":\d+$")
_INDEX = re.compile(r"(?:nvidia|card|gpu)?[-_ ]?(\d{1,4})", re.IGNORECASE | re.ASCII)
_BARE_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def identity_labels(exporter: ExporterDefinition) -> tuple[str, ...]:
    """Return every label that describes the GPU itself."""
    return _unique(
        NODE_LABELS,
        exporter.index,
        exporter.uuid,
        exporter.model,
        exporter.partition,
        exporter.profile,
    )


def node_labels(seen: Collection[Labels]) -> tuple[str, ...]:
    """Return the labels that name the node in the series `seen`."""
    return _labels_in_use(NODE_LABELS, seen)


def key_labels(exporter: ExporterDefinition, seen: Collection[Labels]) -> tuple[str, ...]:
    """Return the fewest labels that distinguish the GPUs `seen`. They make responses several times smaller."""
    if exporter.info:
        return exporter.uuid
    return _unique(node_labels(seen), _labels_in_use(exporter.index, seen), exporter.partition)


def identify(exporter: ExporterDefinition, labels: Labels) -> GpuIdentity | None:
    """Return the GPU that these labels identify, or None."""
    node = node_name(labels)
    index = next((i for name in exporter.index if (i := gpu_index(labels.get(name, ""))) is not None), None)
    if not node or index is None:
        return None
    model = canonical_model(_first(exporter.model, labels))
    return GpuIdentity(
        ref=GpuRef(node, index, _partition(exporter, labels)),
        uuid=canonical_uuid(_first(exporter.uuid, labels), exporter.vendor or vendor_of(model)),
        model=model,
        vendor=exporter.vendor or vendor_of(model),
        profile=_first(exporter.profile, labels),
    )


def node_name(labels: Labels) -> str:
    """Return the node name from the best label that has one."""
    for name in NODE_LABELS:
        if value := labels.get(name):
            return host_of(value) if name.endswith("instance") else value
    return ""


def host_of(instance: str) -> str:
    """Return the host of an `instance` such as `10.0.0.1:9400` or `[fd00::1]:9400`."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    return _PORT.sub("", instance) if instance.count(":") == 1 else instance


def gpu_index(text: str) -> int | None:
    """Return the index in `3`, `nvidia3` or `gpu-3`; None for a model name or a UUID."""
    match = _INDEX.fullmatch(text)
    return int(match[1]) if match else None


def canonical_uuid(uuid: str, vendor: str) -> str:
    """Add the `GPU-` that some exporters remove from NVIDIA's UUIDs."""
    return f"GPU-{uuid}" if vendor == "NVIDIA" and _BARE_UUID.fullmatch(uuid) else uuid


def vendor_of(model: str) -> str:
    """Guess the vendor from a model name."""
    words = model.lower()
    if any(word in words for word in ("nvidia", "tesla", "geforce", "quadro", "rtx")):
        return "NVIDIA"
    if any(word in words for word in ("amd", "instinct", "radeon")):
        return "AMD"
    return ""


def holder_of(labels: Labels) -> GpuUser | None:
    """Return who uses the GPU. The exporter's own labels (`exported_*`) win over those of the scrape."""
    if labels.get("exported_pod"):
        # Prometheus renames only labels that the scrape sets, too.
        pod = {name: _own_label(name, labels) for name in ("namespace", "pod", "container")}
    else:
        pod = {name: labels.get(name, "") for name in ("namespace", "pod", "container")}
    job = _own_label("hpc_job", labels) or _own_label("job_id", labels)
    if not pod["pod"] and not job:
        return None
    if not pod["pod"]:
        pod = dict.fromkeys(pod, "")
    uid = _own_label("pod_uid", labels) if pod["pod"] else ""
    return GpuUser(**pod, pod_uid=uid, job=job, user=_own_label("job_user", labels))


def _own_label(name: str, labels: Labels) -> str:
    return labels.get(f"exported_{name}", "") or labels.get(name, "")


def _partition(exporter: ExporterDefinition, labels: Labels) -> str:
    partition = _first(exporter.partition, labels)
    # AMD numbers partitions from 0, and an unpartitioned GPU is partition 0, too.
    return "" if exporter.vendor == "AMD" and partition == "0" else partition


def _first(names: Iterable[str], labels: Labels) -> str:
    return next((value for name in names if (value := labels.get(name))), "")


def _labels_in_use(names: tuple[str, ...], seen: Collection[Labels]) -> tuple[str, ...]:
    used = {next((name for name in names if labels.get(name)), "") for labels in seen}
    return tuple(name for name in names if name in used) or names


def _unique(*groups: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
