"""What a kubelet writes into the status of a node and of a pod. Pure: what is there in, what to write out."""

import datetime
from collections.abc import Mapping
from typing import Any

DEFAULT_CAPACITY = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "4Ti", "pods": "250"}
_QUIET = ("MemoryPressure", "DiskPressure", "PIDPressure")


def now() -> str:
    """This moment, as Kubernetes writes time."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(
    name: str,
    address: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    taints: list[dict[str, str]],
) -> dict[str, Any]:
    """A node that is ready from its first moment: the API server takes the status with the creation."""
    everything = {**DEFAULT_CAPACITY, **capacity}
    known = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    quiet = [
        condition(kind, False, "KubeletHasSufficient" + kind.removesuffix("Pressure")) for kind in _QUIET
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, **labels}},
        "spec": {"taints": taints},
        "status": {
            "capacity": everything,
            "allocatable": everything,
            "conditions": [*quiet, ready(True)],
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
    """The Ready condition of a node."""
    return condition("Ready", is_ready, "KubeletReady" if is_ready else "KubeletNotReady")


def condition(kind: str, true: bool, reason: str = "") -> dict[str, str]:
    """A condition of a node or pod, seen now."""
    moment = now()
    found = {"type": kind, "status": "True" if true else "False", "lastTransitionTime": moment}
    return {**found, "reason": reason, "lastHeartbeatTime": moment} if reason else found


def waiting(pod: Mapping[str, Any], reason: str, host: str, message: str = "") -> dict[str, Any]:
    """Taken by the node; the containers don't run yet."""
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
    """Init containers done, sidecars and containers up and ready."""
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
    """Every container has ended, with one exit code: Succeeded at 0, else Failed."""
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
    """The node did not take the pod, though it was bound to it."""
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": now()}


def container(
    spec: Mapping[str, Any], state: Mapping[str, Any], ready: bool = False, restarts: int = 0
) -> dict[str, Any]:
    """The status of one container."""
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
