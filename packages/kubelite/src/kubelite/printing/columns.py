"""The columns and cells of built-in kinds in `kubectl get`."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from kubelite.json import Json
from kubelite.kinds import Column
from kubelite.printing.durations import age_of, span

Cells = Callable[[Json, datetime], list[Any]]
NAME = Column("Name", format="name", description="The name, unique within its namespace.")
AGE = Column("Age", description="How long ago the object was created.")
_NONE = "<none>"


def builtin_columns(plural: str) -> tuple[Column, ...]:
    """Return the columns of a built-in kind, or none if it has only name and age."""
    found = _KINDS.get(plural)
    return () if found is None else found[0]


def builtin_cells(plural: str, item: Json, now: datetime) -> list[Any]:
    """Return the cells of entry row."""
    found = _KINDS.get(plural)
    return [_name(item), _age(item, now)] if found is None else found[1](item, now)


def _columns(text: str) -> tuple[Column, ...]:
    """Parse columns such as `Name Ready:int Age | IP Node`; those after the bar are for `-o wide`."""
    shown, _, wide = text.partition("|")
    columns: list[Column] = []
    for priority, titles in ((0, shown), (1, wide)):
        for word in titles.split():
            title, _, kind = word.partition(":")
            title = title.replace("_", " ")
            columns.append(
                NAME
                if title == "Name"
                else Column(title, {"int": "integer"}.get(kind, "string"), priority=priority)
            )
    return tuple(columns)


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])


def _age(item: Json, now: datetime) -> str:
    return age_of(item["metadata"].get("creationTimestamp", ""), now)


def _spec(item: Json) -> Json:
    return item.get("spec") or {}


def _status(item: Json) -> Json:
    return item.get("status") or {}


def _pod(item: Json, now: datetime) -> list[Any]:
    spec, status = _spec(item), _status(item)
    statuses = status.get("containerStatuses") or []
    ready = sum(bool(entry.get("ready")) for entry in statuses)
    restarts = sum(int(entry.get("restartCount") or 0) for entry in statuses)
    gates = spec.get("readinessGates") or []
    met = {entry.get("type") for entry in status.get("conditions") or () if entry.get("status") == "True"}
    readiness = f"{sum(gate.get('conditionType') in met for gate in gates)}/{len(gates)}" if gates else _NONE
    return [
        _name(item),
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_status(item),
        str(restarts),
        _age(item, now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        readiness,
    ]


def _pod_status(item: Json) -> str:
    status = _status(item)
    state = str(status.get("reason") or status.get("phase") or "Unknown")
    scheduled: Json = next(
        (entry for entry in status.get("conditions") or () if entry.get("type") == "PodScheduled"), {}
    )
    if scheduled.get("reason") == "SchedulingGated" or _spec(item).get("schedulingGates"):
        state = "SchedulingGated"
    for entry in status.get("containerStatuses") or ():
        container = entry.get("state") or {}
        waiting, ended = container.get("waiting") or {}, container.get("terminated") or {}
        if waiting.get("reason"):
            state = waiting["reason"]
        elif ended:
            state = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
    if item["metadata"].get("deletionTimestamp") and state not in ("Succeeded", "Failed", "Completed"):
        state = "Terminating"
    return state


def _node(item: Json, now: datetime) -> list[Any]:
    spec, status, labels = _spec(item), _status(item), item["metadata"].get("labels") or {}
    ready = next(
        (entry.get("status") for entry in status.get("conditions") or () if entry.get("type") == "Ready"),
        None,
    )
    state = {"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown" if ready is None else "NotReady")
    if spec.get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))
    info = status.get("nodeInfo") or {}
    addresses = {entry.get("type"): entry.get("address") for entry in status.get("addresses") or ()}
    return [
        _name(item),
        state,
        ",".join(roles) or _NONE,
        _age(item, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or _NONE,
        addresses.get("ExternalIP") or _NONE,
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _template(item: Json) -> tuple[str, str]:
    containers = ((_spec(item).get("template") or {}).get("spec") or {}).get("containers") or []
    return ",".join(entry.get("name", "") for entry in containers), ",".join(
        entry.get("image", "") for entry in containers
    )


def _selector(item: Json) -> str:
    selector = _spec(item).get("selector") or {}
    labels = selector.get("matchLabels") if "matchLabels" in selector else selector
    pairs = [f"{key}={value}" for key, value in (labels or {}).items() if isinstance(value, str)]
    return ",".join(sorted(pairs)) or _NONE


def _deployment(item: Json, now: datetime) -> list[Any]:
    status, names_images = _status(item), _template(item)
    return [
        _name(item),
        f"{status.get('readyReplicas', 0)}/{_spec(item).get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(item, now),
        *names_images,
        _selector(item),
    ]


def _replica_set(item: Json, now: datetime) -> list[Any]:
    status = _status(item)
    counts = [_spec(item).get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [_name(item), *counts, _age(item, now), *_template(item), _selector(item)]


def _stateful_set(item: Json, now: datetime) -> list[Any]:
    ready = f"{_status(item).get('readyReplicas', 0)}/{_spec(item).get('replicas', 0)}"
    return [_name(item), ready, _age(item, now), *_template(item)]


def _daemon_set(item: Json, now: datetime) -> list[Any]:
    status = _status(item)
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    chosen = (((_spec(item).get("template") or {}).get("spec") or {}).get("nodeSelector")) or {}
    nodes = ",".join(f"{key}={value}" for key, value in sorted(chosen.items())) or _NONE
    return [
        _name(item),
        *(status.get(name, 0) for name in names),
        nodes,
        _age(item, now),
        *_template(item),
        _selector(item),
    ]


def _job(item: Json, now: datetime) -> list[Any]:
    spec, status = _spec(item), _status(item)
    true = {entry.get("type") for entry in status.get("conditions") or () if entry.get("status") == "True"}
    state = next((word for word in ("Complete", "Failed", "Suspended") if word in true), "Running")
    done = f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}"
    start, end = status.get("startTime"), status.get("completionTime")
    took = ""
    if start:
        until = datetime.fromisoformat(end) if end else now
        took = span((until - datetime.fromisoformat(start)).total_seconds())
    return [_name(item), state, done, took, _age(item, now), *_template(item), _selector(item)]


def _cron_job(item: Json, now: datetime) -> list[Any]:
    spec, status = _spec(item), _status(item)
    last = status.get("lastScheduleTime")
    return [
        _name(item),
        spec.get("schedule", ""),
        spec.get("timeZone") or _NONE,
        str(bool(spec.get("suspend"))),
        len(status.get("active") or ()),
        age_of(last, now) if last else _NONE,
        _age(item, now),
    ]


def _service(item: Json, now: datetime) -> list[Any]:
    spec = _spec(item)
    ports = [
        f"{entry.get('port')}{':' + str(entry['nodePort']) if entry.get('nodePort') else ''}/{entry.get('protocol', 'TCP')}"
        for entry in spec.get("ports") or ()
    ]
    external = ",".join(spec.get("externalIPs") or ()) or _NONE
    return [
        _name(item),
        spec.get("type", ""),
        spec.get("clusterIP") or _NONE,
        external,
        ",".join(ports) or _NONE,
        _age(item, now),
        _selector(item),
    ]


def _event(item: Json, now: datetime) -> list[Any]:
    about = item.get("involvedObject") or item.get("regarding") or {}
    series = item.get("series") or {}
    source = item.get("source") or item.get("deprecatedSource") or {}
    first = item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp") or item.get("eventTime") or ""
    last = (
        series.get("lastObservedTime")
        or item.get("lastTimestamp")
        or item.get("deprecatedLastTimestamp")
        or item.get("eventTime")
        or first
    )
    count = series.get("count") or item.get("count") or item.get("deprecatedCount") or 1
    component = (
        source.get("component") or item.get("reportingComponent") or item.get("reportingController") or ""
    )
    message = str(item.get("message") or item.get("note") or "").strip()
    return [
        age_of(last, now),
        item.get("type", ""),
        item.get("reason", ""),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        ", ".join(word for word in (component, source.get("host", "")) if word),
        message,
        age_of(first, now),
        count,
        _name(item),
    ]


def _lease(item: Json, now: datetime) -> list[Any]:
    return [_name(item), _spec(item).get("holderIdentity", ""), _age(item, now)]


def _binding(item: Json, now: datetime) -> list[Any]:
    role, subjects = item.get("roleRef") or {}, item.get("subjects") or []

    def of(kind: str) -> str:
        return ", ".join(entry.get("name", "") for entry in subjects if entry.get("kind") == kind)

    accounts = ", ".join(
        f"{entry.get('namespace')}/{entry.get('name')}"
        for entry in subjects
        if entry.get("kind") == "ServiceAccount"
    )
    return [
        _name(item),
        f"{role.get('kind')}/{role.get('name')}",
        _age(item, now),
        of("User"),
        of("Group"),
        accounts,
    ]


def _disruption_budget(item: Json, now: datetime) -> list[Any]:
    spec = _spec(item)
    low, high = spec.get("minAvailable", "N/A"), spec.get("maxUnavailable", "N/A")
    return [_name(item), str(low), str(high), _status(item).get("disruptionsAllowed", 0), _age(item, now)]


def _volume_claim(item: Json, now: datetime) -> list[Any]:
    spec, status = _spec(item), _status(item)
    modes = {
        "ReadWriteOnce": "RWO",
        "ReadOnlyMany": "ROX",
        "ReadWriteMany": "RWX",
        "ReadWriteOncePod": "RWOP",
    }
    capacity = (status.get("capacity") or {}).get("storage", "")
    shown = ",".join(modes.get(mode, mode) for mode in status.get("accessModes") or ())
    return [
        _name(item),
        "Terminating" if item["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        capacity,
        shown,
        spec.get("storageClassName", ""),
        "<unset>",
        _age(item, now),
        spec.get("volumeMode", "Filesystem"),
    ]


_ROLE_BINDING = "Name Role Age | Users Groups ServiceAccounts"
_WEBHOOKS = "Name Webhooks:int Age"
_KINDS: dict[str, tuple[tuple[Column, ...], Cells]] = {
    plural: (_columns(text), cells)
    for plural, text, cells in (
        ("pods", "Name Ready Status Restarts Age | IP Node Nominated_Node Readiness_Gates", _pod),
        (
            "nodes",
            "Name Status Roles Age Version | Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
            _node,
        ),
        (
            "namespaces",
            "Name Status Age",
            lambda o, now: [_name(o), _status(o).get("phase", ""), _age(o, now)],
        ),
        (
            "configmaps",
            "Name Data:int Age",
            lambda o, now: [
                _name(o),
                len(o.get("data") or ()) + len(o.get("binaryData") or ()),
                _age(o, now),
            ],
        ),
        (
            "secrets",
            "Name Type Data:int Age",
            lambda o, now: [_name(o), o.get("type", ""), len(o.get("data") or ()), _age(o, now)],
        ),
        (
            "serviceaccounts",
            "Name Secrets:int Age",
            lambda o, now: [_name(o), len(o.get("secrets") or ()), _age(o, now)],
        ),
        ("services", "Name Type Cluster-IP External-IP Port(s) Age | Selector", _service),
        (
            "deployments",
            "Name Ready Up-to-date:int Available:int Age | Containers Images Selector",
            _deployment,
        ),
        (
            "replicasets",
            "Name Desired:int Current:int Ready:int Age | Containers Images Selector",
            _replica_set,
        ),
        ("statefulsets", "Name Ready Age | Containers Images", _stateful_set),
        (
            "daemonsets",
            "Name Desired:int Current:int Ready:int Up-to-date:int Available:int Node_Selector Age | Containers Images Selector",
            _daemon_set,
        ),
        ("jobs", "Name Status Completions Duration Age | Containers Images Selector", _job),
        ("cronjobs", "Name Schedule Timezone Suspend Active:int Last_Schedule Age", _cron_job),
        ("events", "Last_Seen Type Reason Object | Subobject Source", _event),
        ("leases", "Name Holder Age", _lease),
        (
            "priorityclasses",
            "Name Value:int Global-Default Age PreemptionPolicy",
            lambda o, now: [
                _name(o),
                o.get("value", 0),
                bool(o.get("globalDefault")),
                _age(o, now),
                o.get("preemptionPolicy", ""),
            ],
        ),
        ("roles", "Name Created_At", lambda o, _now: [_name(o), o["metadata"].get("creationTimestamp", "")]),
        (
            "clusterroles",
            "Name Created_At",
            lambda o, _now: [_name(o), o["metadata"].get("creationTimestamp", "")],
        ),
        ("rolebindings", _ROLE_BINDING, _binding),
        ("clusterrolebindings", _ROLE_BINDING, _binding),
        (
            "customresourcedefinitions",
            "Name Created_At",
            lambda o, _now: [_name(o), o["metadata"].get("creationTimestamp", "")],
        ),
        (
            "poddisruptionbudgets",
            "Name Min_Available Max_Unavailable Allowed_Disruptions:int Age",
            _disruption_budget,
        ),
        (
            "persistentvolumeclaims",
            "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age | VolumeMode",
            _volume_claim,
        ),
        (
            "mutatingwebhookconfigurations",
            _WEBHOOKS,
            lambda o, now: [_name(o), len(o.get("webhooks") or ()), _age(o, now)],
        ),
        (
            "validatingwebhookconfigurations",
            _WEBHOOKS,
            lambda o, now: [_name(o), len(o.get("webhooks") or ()), _age(o, now)],
        ),
    )
}
_KINDS["events"] = (
    (
        *(Column(name) for name in ("Last Seen", "Type", "Reason", "Object")),
        Column("Subobject", priority=1),
        Column("Source", priority=1),
        Column("Message"),
        Column("First Seen", priority=1),
        Column("Count", "integer", priority=1),
        Column("Name", format="name", priority=1),
    ),
    _event,
)
