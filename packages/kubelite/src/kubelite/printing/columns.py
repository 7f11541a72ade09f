"""The columns of built-in kinds in `kubectl get`."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from kubelite.json import Json
from kubelite.kinds import Column
from kubelite.printing import cells

Cells = Callable[[Json, datetime], list[Any]]
NAME = Column("Name", format="name", description="The name, unique within its namespace.")
AGE = Column("Age", description="The time since the object was created.")


def builtin_columns(plural: str) -> tuple[Column, ...]:
    """Return the columns of a built-in kind, or none if it has only name and age."""
    found = _KINDS.get(plural)
    return () if found is None else found[0]


def builtin_cells(plural: str, item: Json, now: datetime) -> list[Any]:
    """Return the cells of one row."""
    found = _KINDS.get(plural)
    return cells.name_and_age(item, now) if found is None else found[1](item, now)


def _columns(text: str) -> tuple[Column, ...]:
    """Parse columns such as `Name Ready:int Age | IP Node`; those after the bar are for `-o wide`."""
    normal, _, wide = text.partition("|")
    columns: list[Column] = []
    for priority, titles in ((0, normal), (1, wide)):
        for word in titles.split():
            title, _, kind = word.partition(":")
            title = title.replace("_", " ")
            column = Column(title, {"int": "integer"}.get(kind, "string"), priority=priority)
            columns.append(NAME if title == "Name" else column)
    return tuple(columns)


_ROLE_BINDING = "Name Role Age | Users Groups ServiceAccounts"
_TABLE: tuple[tuple[str, str, Cells], ...] = (
    ("pods", "Name Ready Status Restarts Age | IP Node Nominated_Node Readiness_Gates", cells.pod),
    (
        "nodes",
        "Name Status Roles Age Version | Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
        cells.node,
    ),
    ("namespaces", "Name Status Age", cells.namespace),
    ("configmaps", "Name Data:int Age", cells.config_map),
    ("secrets", "Name Type Data:int Age", cells.secret),
    ("serviceaccounts", "Name Secrets:int Age", cells.service_account),
    ("services", "Name Type Cluster-IP External-IP Port(s) Age | Selector", cells.service),
    (
        "deployments",
        "Name Ready Up-to-date:int Available:int Age | Containers Images Selector",
        cells.deployment,
    ),
    (
        "replicasets",
        "Name Desired:int Current:int Ready:int Age | Containers Images Selector",
        cells.replica_set,
    ),
    ("statefulsets", "Name Ready Age | Containers Images", cells.stateful_set),
    (
        "daemonsets",
        "Name Desired:int Current:int Ready:int Up-to-date:int Available:int Node_Selector Age"
        " | Containers Images Selector",
        cells.daemon_set,
    ),
    ("jobs", "Name Status Completions Duration Age | Containers Images Selector", cells.job),
    ("cronjobs", "Name Schedule Timezone Suspend Active:int Last_Schedule Age", cells.cron_job),
    ("leases", "Name Holder Age", cells.lease),
    ("priorityclasses", "Name Value:int Global-Default Age PreemptionPolicy", cells.priority_class),
    ("roles", "Name Created_At", cells.name_and_creation),
    ("clusterroles", "Name Created_At", cells.name_and_creation),
    ("rolebindings", _ROLE_BINDING, cells.binding),
    ("clusterrolebindings", _ROLE_BINDING, cells.binding),
    ("customresourcedefinitions", "Name Created_At", cells.name_and_creation),
    (
        "poddisruptionbudgets",
        "Name Min_Available Max_Unavailable Allowed_Disruptions:int Age",
        cells.disruption_budget,
    ),
    (
        "persistentvolumeclaims",
        "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age | VolumeMode",
        cells.volume_claim,
    ),
    ("mutatingwebhookconfigurations", "Name Webhooks:int Age", cells.webhook_configuration),
    ("validatingwebhookconfigurations", "Name Webhooks:int Age", cells.webhook_configuration),
)
_EVENTS = (
    *(Column(name) for name in ("Last Seen", "Type", "Reason", "Object")),
    Column("Subobject", priority=1),
    Column("Source", priority=1),
    Column("Message"),
    Column("First Seen", priority=1),
    Column("Count", "integer", priority=1),
    Column("Name", format="name", priority=1),
)
_KINDS: dict[str, tuple[tuple[Column, ...], Cells]] = {
    "events": (_EVENTS, cells.event),
    **{plural: (_columns(text), make_cells) for plural, text, make_cells in _TABLE},
}
