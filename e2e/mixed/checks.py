"""Check a mixed load: by the audit log, by samples, and by what the server shows at the end."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from e2e.chaos import audit
from e2e.cluster import Cluster
from e2e.mixed.load import Load
from e2e.system import System, Users
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM

WATCH_DELAY = timedelta(seconds=5)
"""A device-plugin pod that was bound less than this before the leases of a claim were written may not have reached the
scheduler's watch, on a machine with few cores for all of these processes."""
_OTHERS = ("plugin-", "resource-")
"""How the names of pods without a GpuClaim begin; each has one GPU."""
Line = dict[str, object]


def run_checks(system: System, users: Users, load: Load, since: int, gpus: dict[str, int]) -> list[Line]:
    """Return a line for each observation and check; `gpus` are the GPUs of each node."""
    events = list(system.cluster.audit(since))
    verdict = audit.check_log(events, {}, {each["metadata"]["uid"] for each in users.pods()})
    over = overcommitted(events, gpus)
    _settle(system.cluster, users)
    shown, held = _shown(system, users), _held(users)
    leases = len(system.leases())
    claimed = sum(held[name] for name in held if not name.startswith(_OTHERS))
    return [
        {"what": "created", "observed": dict(load.created)},
        {"what": "bindings of claims", "observed": verdict.bindings},
        _check("no GPU was given twice by gpufleet", verdict.faults[:5], []),
        _check("no claim took the GPUs of device-plugin pods", over[:5], []),
        _check(f"no device with two owners in {load.samples} samples", sorted(load.faults)[:5], []),
        _check("leases are what running claims hold", leases, claimed),
        _check("every GPU is accounted", shown, held),
    ]


def overcommitted(events: Iterable[audit.Event], gpus: dict[str, int]) -> list[str]:
    """Return the bindings of claims that exceeded the GPUs of a node, with the pods of device plugins there.

    kube-scheduler may put a device-plugin pod where claims hold all GPUs; that is not counted here.
    """
    used: dict[str, _Used] = {}
    leased: dict[str, datetime] = {}
    faults = []
    for event in events:
        if event.get("stage") != "ResponseComplete" or not 200 <= event["responseStatus"]["code"] < 300:
            continue
        about = event.get("objectRef", {})
        name = about.get("name", "")
        match about.get("resource"), about.get("subresource"), event["verb"]:
            case "leases", None, "create" | "update" | "patch" if name.startswith("gpu-"):
                for uid in event["responseObject"]["spec"].get("holderIdentity", "").split(","):
                    leased[uid] = datetime.fromisoformat(event["requestReceivedTimestamp"])
            case "pods", "binding", "create":
                new = _bound(event, leased)
                known = [each for each in used.values() if each.node == new.node and each.known_at(new.at)]
                total = new.count + sum(each.count for each in known)
                if new.ours and new.node in gpus and total > gpus[new.node]:
                    newest = max((each.at for each in known if not each.ours), default=new.at)
                    seconds = (new.at - newest).total_seconds()
                    faults.append(
                        f"{name} made {total} of {gpus[new.node]} on {new.node} at {new.at:%H:%M:%S}, "
                        f"{seconds:.1f} s after the last device-plugin pod"
                    )
                used[name] = new
            case "pods", "status", "patch" | "update":
                if event.get("responseObject", {}).get("status", {}).get("phase") in ("Succeeded", "Failed"):
                    used.pop(name, None)
            case "pods", None, "delete":
                used.pop(name, None)
    return faults


@dataclass(frozen=True)
class _Used:
    """The GPUs of a bound pod; `at` is when a claim's leases were written, or another pod was bound."""

    node: str
    count: int
    at: datetime
    ours: bool

    def known_at(self, moment: datetime) -> bool:
        """Return whether the scheduler must have known the pod then."""
        return self.ours or self.at < moment - WATCH_DELAY


def _bound(event: audit.Event, leased: dict[str, datetime]) -> _Used:
    body = event["requestObject"]
    meta = body.get("metadata", {})
    ids = meta.get("annotations", {}).get(ALLOCATED, "").rpartition(":")[2]
    count = len(ids.split(",")) if ids else int(event["objectRef"]["name"].startswith("plugin-"))
    at = datetime.fromisoformat(event["requestReceivedTimestamp"])
    return _Used(body["target"]["name"], count, leased.get(meta.get("uid", ""), at) if ids else at, bool(ids))


def _check(what: str, observed: Any, expected: Any) -> Line:
    return {"what": what, "observed": observed, "expected": expected, "ok": observed == expected}


def _settle(cluster: Cluster, users: Users) -> None:
    """Wait until no Job runs and no pod is between its binding and its start."""

    def settled() -> bool:
        return all(
            not each["spec"].get("nodeName") or each["status"].get("phase") != "Pending"
            for each in users.pods()
        ) and not any(
            "job-name" in each["metadata"].get("labels", {})
            and each["status"].get("phase") not in ("Succeeded", "Failed")
            for each in users.pods()
        )

    cluster.wait_for("a settled cluster", settled, timeout=180, period=0.5)


def _held(users: Users) -> dict[str, int]:
    """Return the GPUs that each running pod has, as the API server says."""
    held = {}
    for each in users.pods():
        meta = each["metadata"]
        if each["status"].get("phase") != "Running" or "job-name" in meta.get("labels", {}):
            continue
        if CLAIM in meta.get("annotations", {}):
            held[meta["name"]] = len(meta["annotations"][ALLOCATED].rpartition(":")[2].split(","))
        elif meta["name"].startswith(_OTHERS):
            held[meta["name"]] = 1
    return held


def _shown(system: System, users: Users) -> dict[str, int]:
    """Return the GPUs that the server shows for each of these pods, once it agrees or after ten seconds."""

    def rows() -> dict[str, int]:
        path = f"/api/workloads?namespace={users.namespace}&status=Running&kind=Pod&pageSize=1000"
        return {row["name"]: row["gpuAllocated"] for row in system.get(path)["data"]}

    try:
        system.cluster.wait_for("the server", lambda: rows() == _held(users), timeout=30, period=0.5)
    except TimeoutError:
        pass
    return rows()
