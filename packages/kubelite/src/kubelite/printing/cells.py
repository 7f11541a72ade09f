"""The cells of one row of `kubectl get`, for each built-in kind."""

from datetime import datetime
from typing import Any

from kubelite.json import Json
from kubelite.printing.durations import age_of, span

_NONE = "<none>"


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])


def _age(item: Json, now: datetime) -> str:
    return age_of(item["metadata"].get("creationTimestamp", ""), now)


def _spec(item: Json) -> Json:
    return item.get("spec") or {}


def _status(item: Json) -> Json:
    return item.get("status") or {}


def pod(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Pod."""
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


def node(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Node."""
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


def deployment(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Deployment."""
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


def replica_set(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a ReplicaSet."""
    status = _status(item)
    counts = [_spec(item).get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [_name(item), *counts, _age(item, now), *_template(item), _selector(item)]


def stateful_set(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a StatefulSet."""
    ready = f"{_status(item).get('readyReplicas', 0)}/{_spec(item).get('replicas', 0)}"
    return [_name(item), ready, _age(item, now), *_template(item)]


def daemon_set(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a DaemonSet."""
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


def job(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Job."""
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


def cron_job(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a CronJob."""
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


def service(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Service."""
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


def event(item: Json, now: datetime) -> list[Any]:
    """Return the cells of an Event."""
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


def lease(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Lease."""
    return [_name(item), _spec(item).get("holderIdentity", ""), _age(item, now)]


def binding(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a RoleBinding or ClusterRoleBinding."""
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


def disruption_budget(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a PodDisruptionBudget."""
    spec = _spec(item)
    low, high = spec.get("minAvailable", "N/A"), spec.get("maxUnavailable", "N/A")
    return [_name(item), str(low), str(high), _status(item).get("disruptionsAllowed", 0), _age(item, now)]


def volume_claim(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a PersistentVolumeClaim."""
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


def namespace(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Namespace."""
    return [_name(item), _status(item).get("phase", ""), _age(item, now)]


def config_map(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a ConfigMap."""
    keys = len(item.get("data") or ()) + len(item.get("binaryData") or ())
    return [_name(item), keys, _age(item, now)]


def secret(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a Secret."""
    return [_name(item), item.get("type", ""), len(item.get("data") or ()), _age(item, now)]


def service_account(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a ServiceAccount."""
    return [_name(item), len(item.get("secrets") or ()), _age(item, now)]


def priority_class(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a PriorityClass."""
    value, is_default = item.get("value", 0), bool(item.get("globalDefault"))
    return [_name(item), value, is_default, _age(item, now), item.get("preemptionPolicy", "")]


def webhook_configuration(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a webhook configuration."""
    return [_name(item), len(item.get("webhooks") or ()), _age(item, now)]


def name_and_age(item: Json, now: datetime) -> list[Any]:
    """Return the cells of a kind without columns of its own."""
    return [_name(item), _age(item, now)]


def name_and_creation(item: Json, _now: datetime) -> list[Any]:
    """Return the cells of a kind that shows its creation time."""
    return [_name(item), item["metadata"].get("creationTimestamp", "")]
