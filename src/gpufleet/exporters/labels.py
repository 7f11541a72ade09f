"""From an exporter's labels to the GPU that they mean, and to who uses it.

Pure functions over one set of labels. What can't be read (no node, no index) gives None:
a reading whose GPU is not known is left out rather than guessed.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from gpufleet.exporters.known_exporters import NODE_LABELS, Exporter
from gpufleet.model.reading import GpuIdentity, GpuRef, GpuUser

Labels = Mapping[str, str]

_PORT = re.compile(r":\d+$")
_INDEX = re.compile(r"(?:nvidia|card|gpu)?[-_ ]?(\d{1,4})", re.IGNORECASE | re.ASCII)
_BARE_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def identity_labels(vocabulary: Exporter) -> tuple[str, ...]:
    """Every label that says something of the GPU itself."""
    return _unique(
        NODE_LABELS,
        vocabulary.index,
        vocabulary.uuid,
        vocabulary.model,
        vocabulary.partition,
        vocabulary.profile,
    )


def node_labels(seen: Collection[Labels]) -> tuple[str, ...]:
    """The labels by which the series `seen` name their node."""
    return _enough(NODE_LABELS, seen)


def key_labels(vocabulary: Exporter, seen: Collection[Labels]) -> tuple[str, ...]:
    """The fewest labels that tell apart the GPUs `seen`: they make answers several times smaller."""
    if vocabulary.info:
        return vocabulary.uuid
    return _unique(node_labels(seen), _enough(vocabulary.index, seen), vocabulary.partition)


def identify(vocabulary: Exporter, labels: Labels) -> GpuIdentity | None:
    """The GPU that these labels mean, or None if they don't say."""
    node = node_name(labels)
    index = next((i for name in vocabulary.index if (i := gpu_index(labels.get(name, ""))) is not None), None)
    if not node or index is None:
        return None
    model = _first(vocabulary.model, labels)
    return GpuIdentity(
        ref=GpuRef(node, index, _partition(vocabulary, labels)),
        uuid=canonical_uuid(_first(vocabulary.uuid, labels), vocabulary.vendor or vendor_of(model)),
        model=model,
        vendor=vocabulary.vendor or vendor_of(model),
        profile=_first(vocabulary.profile, labels),
    )


def node_name(labels: Labels) -> str:
    """The node, by the best label that names it."""
    for name in NODE_LABELS:
        if value := labels.get(name):
            return host_of(value) if name.endswith("instance") else value
    return ""


def host_of(instance: str) -> str:
    """The host of an `instance`: `10.0.0.1:9400` and `[fd00::1]:9400` without their port."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    return _PORT.sub("", instance) if instance.count(":") == 1 else instance


def gpu_index(text: str) -> int | None:
    """The index in `3`, `nvidia3` or `gpu-3`; None for a model's name or a UUID."""
    match = _INDEX.fullmatch(text)
    return int(match[1]) if match else None


def canonical_uuid(uuid: str, vendor: str) -> str:
    """NVIDIA's UUIDs with the `GPU-` that some exporters cut off."""
    return f"GPU-{uuid}" if vendor == "NVIDIA" and _BARE_UUID.fullmatch(uuid) else uuid


def vendor_of(model: str) -> str:
    """The maker, as far as a model's name tells."""
    words = model.lower()
    if any(word in words for word in ("nvidia", "tesla", "geforce", "quadro", "rtx")):
        return "NVIDIA"
    if any(word in words for word in ("amd", "instinct", "radeon")):
        return "AMD"
    return ""


def holder_of(labels: Labels) -> GpuUser | None:
    """Who uses the GPU; what the exporter itself said (`exported_*`) comes before the scrape's labels."""
    if labels.get("exported_pod"):
        # Only labels that the scrape has too are renamed.
        pod = {name: _said(name, labels) for name in ("namespace", "pod", "container")}
    else:
        pod = {name: labels.get(name, "") for name in ("namespace", "pod", "container")}
    job = _said("hpc_job", labels) or _said("job_id", labels)
    if not pod["pod"] and not job:
        return None
    if not pod["pod"]:
        pod = dict.fromkeys(pod, "")
    uid = _said("pod_uid", labels) if pod["pod"] else ""
    return GpuUser(**pod, pod_uid=uid, job=job, user=_said("job_user", labels))


def _said(name: str, labels: Labels) -> str:
    return labels.get(f"exported_{name}", "") or labels.get(name, "")


def _partition(vocabulary: Exporter, labels: Labels) -> str:
    partition = _first(vocabulary.partition, labels)
    # AMD numbers the partitions from 0, and a GPU that is not cut is partition 0 as well.
    return "" if vocabulary.vendor == "AMD" and partition == "0" else partition


def _first(names: Iterable[str], labels: Labels) -> str:
    return next((value for name in names if (value := labels.get(name))), "")


def _enough(names: tuple[str, ...], seen: Collection[Labels]) -> tuple[str, ...]:
    used = {next((name for name in names if labels.get(name)), "") for labels in seen}
    return tuple(name for name in names if name in used) or names


def _unique(*groups: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
