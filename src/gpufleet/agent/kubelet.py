"""Which pod got which GPU from a device plugin, as the kubelet writes it down for itself.

The kubelet answers the same question on its PodResources socket. That needs gRPC, whose library is larger
than this whole agent, tells pods by name and not by uid, and has to be asked; the device manager's
checkpoint is one small file of JSON with uids, replaced as a whole at every change, of the same form since
Kubernetes 1.20 (older ones list the ids without NUMA nodes). It is only read. Pods that are over may stay
in it until the next allocation, so callers compare with the pods that there are.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.errors import KubernetesUnavailable

_MOST_BYTES = 16 * 1024 * 1024


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(default="", name="PodUID")
    device_ids: Any = msgspec.field(default=None, name="DeviceIDs")


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data = msgspec.field(default_factory=_Data)


def plugged(path: Path) -> Mapping[str, set[str]]:
    """Device ids by the uid of their pod; nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            body = file.read(_MOST_BYTES)
        entries = msgspec.json.decode(body, type=_Checkpoint).data.pod_device_entries or ()
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise KubernetesUnavailable(f"the kubelet's checkpoint {path}: {error}") from error
    found: dict[str, set[str]] = {}
    for entry in entries:
        found.setdefault(entry.pod_uid, set()).update(_ids(entry.device_ids))
    return found


def _ids(told: Any) -> Iterator[str]:
    """The ids in a list, or in lists by NUMA node."""
    groups = told.values() if isinstance(told, dict) else [told or ()]
    for group in groups:
        yield from (str(each) for each in group or ())
