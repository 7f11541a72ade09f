"""A fake API server with a large cluster for the client benchmark: realistic nodes, pods and pod events.

All responses are encoded before the first request, so that the clients are measured and not the server.
"""

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

NODES, PODS, EVENTS, PAGE = 5_000, 20_000, 10_000, 500

_TIME = "2026-11-01T08:00:00Z"


def _managed(manager: str, paths: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        f'k:{{"type":"field-{number}"}}': {".": {}, "f:status": {}} for number in range(paths)
    }
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _TIME,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {"f:conditions": fields}},
    }


def _condition(kind: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True",
        "reason": f"{kind}IsWell",
        "message": f"kubelet has posted that {kind} is well",
        "lastHeartbeatTime": _TIME,
        "lastTransitionTime": _TIME,
    }


def node(number: int) -> dict[str, Any]:
    """Return a node with 8 GPUs and 50 images, about 11 kB."""
    amounts = {
        "cpu": "128",
        "memory": "2113439428Ki",
        "ephemeral-storage": "7499126Mi",
        "nvidia.com/gpu": "8",
    }
    images = [
        {
            "names": [
                f"registry.example.com/team-{n % 7}/image-{n}@sha256:{n:064x}",
                f"registry.example.com/team-{n % 7}/image-{n}:v1.{n}",
            ],
            "sizeBytes": 10**9 + n,
        }
        for n in range(50)
    ]
    labels = {f"nvidia.com/gpu.fact-{n}": f"value-{n}" for n in range(15)}
    return {
        "metadata": {
            "name": f"node-{number:05}",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number + 1),
            "creationTimestamp": _TIME,
            "labels": {"kubernetes.io/hostname": f"node-{number:05}", "gpu-type": "h100", **labels},
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "csi.example.com/nodeid": f"i-{number:017x}",
            },
            "managedFields": [_managed("kubelet", 12), _managed("kube-controller-manager", 6)],
        },
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": f"cloud://{number}"},
        "status": {
            "capacity": {**amounts, "pods": "110"},
            "allocatable": {**amounts, "pods": "110"},
            "conditions": [
                _condition(kind)
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
            ],
            "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": "f" * 32,
                "systemUUID": "f" * 36,
                "bootID": "f" * 36,
                "kernelVersion": "6.8.0",
                "osImage": "Ubuntu 24.04 LTS",
                "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.36.3",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "images": images,
        },
    }


def pod(number: int, version: int) -> dict[str, Any]:
    """Return a pod of a training job with 8 GPUs, about 6 kB."""
    name = f"train-{number // 8:05}-worker-{number % 8}"
    resources = {
        "limits": {"nvidia.com/gpu": "8", "memory": "512Gi"},
        "requests": {"nvidia.com/gpu": "8", "cpu": "32"},
    }
    container = {
        "name": "worker",
        "image": "registry.example.com/training/megatron:24.10",
        "command": ["torchrun", "--nproc-per-node=8", "pretrain_gpt.py"],
        "args": [f"--argument-{n}={n}" for n in range(20)],
        "env": [{"name": f"VARIABLE_{n}", "value": f"value of variable {n}"} for n in range(20)],
        "resources": resources,
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/volume-{n}"} for n in range(6)],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"train-{number // 8:05}",
        "uid": f"22222222-0000-4000-8000-{number // 8:012}",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "metadata": {
            "name": name,
            "generateName": name[:-1],
            "namespace": f"team-{number % 40:02}",
            "uid": f"11111111-0000-4000-8000-{number:012}",
            "resourceVersion": str(version),
            "creationTimestamp": _TIME,
            "labels": {
                "app": "training",
                "job-name": f"train-{number // 8:05}",
                "team": f"team-{number % 40:02}",
            },
            "annotations": {"gpu.scheduling/claim": "eight", "prometheus.io/scrape": "true"},
            "ownerReferences": [owner],
            "managedFields": [_managed("kube-controller-manager", 10), _managed("kubelet", 12)],
        },
        "spec": {
            "volumes": [
                {"name": f"volume-{n}", "persistentVolumeClaim": {"claimName": f"claim-{n}"}}
                for n in range(6)
            ],
            "containers": [container],
            "restartPolicy": "Never",
            "dnsPolicy": "ClusterFirst",
            "nodeName": f"node-{number % NODES:05}",
            "schedulerName": "gpu-scheduler",
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            ],
            "priority": 0,
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _TIME}
                for kind in (
                    "PodReadyToStartContainers",
                    "Initialized",
                    "Ready",
                    "ContainersReady",
                    "PodScheduled",
                )
            ],
            "hostIP": "10.1.2.3",
            "podIP": "10.2.3.4",
            "podIPs": [{"ip": "10.2.3.4"}],
            "startTime": _TIME,
            "containerStatuses": [
                {
                    "name": "worker",
                    "state": {"running": {"startedAt": _TIME}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.example.com/training/megatron:24.10",
                    "imageID": f"registry.example.com/training/megatron@sha256:{'a' * 64}",
                    "containerID": f"containerd://{number:064x}",
                    "started": True,
                }
            ],
            "qosClass": "Burstable",
        },
    }


def _pages(kind: str, items: list[bytes]) -> list[bytes]:
    pages = []
    for start in range(0, len(items), PAGE):
        following = start + PAGE
        rest = str(following // PAGE) if following < len(items) else ""
        head = {
            "kind": f"{kind}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "100000", "continue": rest},
        }
        pages.append(
            json.dumps(head).encode()[:-1] + b',"items":[' + b",".join(items[start:following]) + b"]}"
        )
    return pages


def _events() -> list[bytes]:
    events = []
    for number in range(EVENTS):
        item = {"kind": "Pod", "apiVersion": "v1", **pod(number % PODS, 100_001 + number)}
        events.append(json.dumps({"type": "MODIFIED", "object": item}).encode() + b"\n")
    return events


def application() -> web.Application:
    """Serve pages of nodes and pods, and one watch of pods with all events."""
    pages = {
        "/api/v1/nodes": _pages("Node", [json.dumps(node(n)).encode() for n in range(NODES)]),
        "/api/v1/pods": _pages("Pod", [json.dumps(pod(n, n + 1)).encode() for n in range(PODS)]),
    }
    events = _events()
    chunks = [b"".join(events[start : start + 100]) for start in range(0, EVENTS, 100)]

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            body = pages[request.path][int(request.query.get("continue") or 0)]
            return web.Response(body=body, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path.endswith("pods") and request.query["resourceVersion"] == "100000":
            for chunk in chunks:
                await response.write(chunk)
        else:
            await asyncio.sleep(600)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    return app


async def serve(app: web.Application) -> None:
    """Serve on a free loopback port, print the address, and stop when standard input is closed."""
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(application()))
