"""Convert Slurm nodes to the types of the fleet, from JSON or from `scontrol -o show nodes`.

A node is faulty while Slurm calls it down, failing, not responding or registered with too few resources. It
is cordoned while it is drained, in maintenance or blocked. A node that is powered down to save energy is
neither, because a job would wake it.
"""

import re

from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.node import FleetNode
from gpufleet.sources.slurm.gres import count_in, type_in
from gpufleet.sources.slurm.wire import NodeRecord, number, text, words

_BROKEN = ("DOWN", "ERROR", "FAIL", "FAILING", "INVALID_REG", "NOT_RESPONDING", "UNKNOWN")
_CORDONED = {"DRAIN", "DRAINED", "DRAINING", "MAINTENANCE", "MAINT", "BLOCKED", "REBOOT_ISSUED", "REBOOT"}
_ASLEEP = {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"}
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]+)=")
_VENDORS = (
    ("nvidia", re.compile(r"nvidia|tesla|geforce|rtx|quadro", re.I)),
    ("amd", re.compile(r"amd|mi\d", re.I)),
)


def node_from(record: NodeRecord) -> FleetNode | None:
    """Convert a record; None for a node that is only planned."""
    state = words(record.state, record.state_flags)
    name, gres = text(record.name), text(record.gres)
    if "FUTURE" in state or not name:
        return None
    broken = next((word for word in _BROKEN if word in state), "")
    if broken == "NOT_RESPONDING" and _ASLEEP & set(state):
        broken = ""
    reason = text(record.reason)
    model = canonical_model(type_in(gres))
    aliases = dict.fromkeys((text(record.hostname), text(record.address)))
    labels = {
        "slurm/partitions": text(record.partitions),
        "slurm/features": text(record.active_features),
        "slurm/state": "+".join(state),
        "slurm/reason": reason,
    }
    return FleetNode(
        name=name,
        aliases=tuple(alias for alias in aliases if alias and alias != name),
        source="slurm",
        ready=not broken,
        not_ready_reason=f"Slurm says {broken}" + (f": {reason}" if reason else "") if broken else "",
        cordoned=bool(_CORDONED & set(state)),
        labels={key: value for key, value in labels.items() if value},
        gpu_count=count_in(gres),
        gpu_model=model,
        vendor=next((vendor for vendor, pattern in _VENDORS if pattern.match(model)), ""),
        created=float(number(record.boot_time) or 0),
    )


def nodes_in_text(lines: str) -> tuple[NodeRecord, ...]:
    """Parse the output of `scontrol -o show nodes`, one record per line."""
    return tuple(_record(line) for line in lines.splitlines() if line.startswith("NodeName="))


def _record(line: str) -> NodeRecord:
    # The reason is free text that may look like fields; it comes last.
    before, _, reason = line.partition(" Reason=")
    marks = list(_FIELD.finditer(before))
    ends = [mark.start() for mark in marks[1:]] + [len(before)]
    fields = {mark[1]: before[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
    return NodeRecord(
        name=fields.get("NodeName", ""),
        hostname=fields.get("NodeHostName", ""),
        address=fields.get("NodeAddr", ""),
        gres=fields.get("Gres", ""),
        state=fields.get("State", ""),
        reason=re.sub(r"\s*\[[^\[\]]*@[^\[\]]*\].*$", "", reason).strip(),
        active_features=fields.get("ActiveFeatures", ""),
        partitions=fields.get("Partitions", ""),
    )
