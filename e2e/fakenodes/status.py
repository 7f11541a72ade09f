"""Build the status of nodes and pods that a kubelet writes. All functions are pure."""

import datetime
from collections.abc import Mapping
from typing import Any

DEFAULT_CAPACITY = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "4Ti", "pods": "250"}
_PRESSURE_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure")


def now() -> str:
    """Return the current time in the format of Kubernetes."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(
    name: str,
    address: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    taints: list[dict[str, str]],
) -> dict[str, Any]:
    """Return a node that is ready when it is created; the API server accepts the status with it."""
    resources = {**DEFAULT_CAPACITY, **capacity}
    standard = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    pressure = [
        condition(kind, False, "KubeletHasSufficient" + kind.removesuffix("Pressure"))
        for kind in _PRESSURE_CONDITIONS
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**standard, **labels}},
        "spec": {"taints": taints},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [*pressure, ready(True)],
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "fake://1",
                "kernelVersion": "fake",
                "kubeProxyVersion": "",
                "kubeletVersion": "v0.0.0-fake",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "fake",
                "systemUUID": "",
            },
        },
    }


def ready(is_ready: bool) -> dict[str, str]:
    """Return the Ready condition of a node."""
    return condition("Ready", is_ready, "KubeletReady" if is_ready else "KubeletNotReady")


def condition(kind: str, true: bool, reason: str = "") -> dict[str, str]:
    """Return a condition of a node or pod with the current time."""
    moment = now()
    found = {"type": kind, "status": "True" if true else "False", "lastTransitionTime": moment}
    return {**found, "reason": reason, "lastHeartbeatTime": moment} if reason else found


def waiting(pod: Mapping[str, Any], reason: str, host: str, message: str = "") -> dict[str, Any]:
    """Return the status of an admitted pod whose containers don't run yet."""
    state = {"waiting": {"reason": reason, "message": message}}
    inits = pod["spec"].get("initContainers", [])
    return {
        "phase": "Pending",
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "startTime": now(),
        "conditions": [
            condition("Initialized", not inits),
            condition("Ready", False),
            condition("ContainersReady", False),
        ],
        "initContainerStatuses": [container(each, state) for each in inits],
        "containerStatuses": [container(each, state) for each in pod["spec"]["containers"]],
    }


def running(pod: Mapping[str, Any], host: str, address: str, restarts: int) -> dict[str, Any]:
    """Return the status of a running pod: init containers completed, sidecars and containers ready."""
    state = {"running": {"startedAt": now()}}
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}
    inits = [
        container(each, state if each.get("restartPolicy") == "Always" else done, ready=True)
        for each in pod["spec"].get("initContainers", [])
    ]
    return {
        "phase": "Running",
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": pod.get("status", {}).get("startTime") or now(),
        "conditions": [
            condition(kind, True)
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
        ],
        "initContainerStatuses": inits,
        "containerStatuses": [
            container(each, state, ready=True, restarts=restarts) for each in pod["spec"]["containers"]
        ],
    }


def ended(pod: Mapping[str, Any], started: str, exit_code: int, restarts: int) -> dict[str, Any]:
    """Return the status of a pod whose containers all ended with `exit_code`."""
    terminated = {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "startedAt": started,
        "finishedAt": now(),
    }
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "conditions": [condition("Ready", False), condition("ContainersReady", False)],
        "containerStatuses": [
            container(each, {"terminated": terminated}, restarts=restarts)
            for each in pod["spec"]["containers"]
        ],
    }


def rejected(reason: str, message: str) -> dict[str, Any]:
    """Return the status of a pod that the node rejected after binding."""
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": now()}


def container(
    spec: Mapping[str, Any], state: Mapping[str, Any], ready: bool = False, restarts: int = 0
) -> dict[str, Any]:
    """Return the status of one container."""
    return {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": f"fake://{spec['image']}",
        "containerID": f"fake://{spec['name']}" if "waiting" not in state else "",
        "state": state,
        "ready": ready,
        "started": "running" in state,
        "restartCount": restarts,
    }
