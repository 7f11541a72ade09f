"""A fake API server with 12,500 nodes, 100,000 GPUs and 30,000 pods, and 2,000 pod events a second.

All responses are encoded before the first request, so that the client is measured and not the server.
Run as a module, it prints its address and stops when its standard input is closed.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from bench import fake_kube_api

NODES, GPUS, PODS, HOLDING, JOBS = 12_500, 8, 30_000, 25_000, 3_750
EVENTS_A_SECOND, SECONDS = 2_000, 15
PAGE = 500
VERSION = 100_000


def node(number: int) -> dict[str, Any]:
    """Return a node of the client benchmark."""
    return fake_kube_api.node(number)


def node_status(number: int) -> dict[str, Any]:
    """Return a GpuNodeStatus with 8 healthy GPUs in one island."""
    devices = [
        {
            "id": gpu,
            "health": "Healthy",
            "uuid": f"GPU-{number:05}-{gpu}",
            "model": "NVIDIA H200",
            "island": "nvlink-group-0",
            "bandwidthGBps": 900,
        }
        for gpu in range(GPUS)
    ]
    meta = {"name": f"node-{number:05}", "uid": f"33333333-0000-4000-8000-{number:012}"}
    return {
        "metadata": meta,
        "spec": {"nodeName": f"node-{number:05}"},
        "status": {"total": GPUS, "devices": devices},
    }


def pod(number: int, version: int, phase: str = "Running") -> dict[str, Any]:
    """Return a worker: the first 25,000 hold 4 GPUs each, two on a node; the rest hold none."""
    item = fake_kube_api.pod(number, version)
    first = number % 2 * 4
    amount = "4" if number < HOLDING else "0"
    item["spec"]["nodeName"] = f"node-{number // 2 % NODES:05}"
    item["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": amount}}
    gpus = ",".join(str(gpu) for gpu in range(first, first + 4))
    item["metadata"]["annotations"] = {"gpu.scheduling/allocated": f"{item['spec']['nodeName']}:{gpus}"}
    item["status"]["phase"] = phase
    return item


def job(number: int) -> dict[str, Any]:
    """Return the job that owns 8 workers."""
    meta = {
        "name": f"train-{number:05}",
        "namespace": f"team-{number % 40:02}",
        "uid": f"22222222-0000-4000-8000-{number:012}",
    }
    return {"metadata": meta, "spec": {"parallelism": 8}, "status": {"active": 8}}


def _pages(kind: str, items: Iterable[dict[str, Any]]) -> list[bytes]:
    encoded = [json.dumps(item).encode() for item in items]
    pages = []
    for start in range(0, max(1, len(encoded)), PAGE):
        rest = str(start // PAGE + 1) if start + PAGE < len(encoded) else ""
        head = {"kind": f"{kind}List", "apiVersion": "v1"}
        meta = {"resourceVersion": str(VERSION), "continue": rest}
        body = json.dumps({**head, "metadata": meta}).encode()[:-1]
        pages.append(body + b',"items":[' + b",".join(encoded[start : start + PAGE]) + b"]}")
    return pages


def _events() -> list[bytes]:
    """Return one chunk per tenth of a second; each event fails or restarts a pod with GPUs."""
    chunks = []
    for tenth in range(SECONDS * 10):
        lines = []
        for number in range(EVENTS_A_SECOND // 10):
            serial = tenth * EVENTS_A_SECOND // 10 + number
            phase = "Failed" if serial // HOLDING % 2 == 0 else "Running"
            item = {"kind": "Pod", "apiVersion": "v1", **pod(serial % HOLDING, VERSION + 1 + serial, phase)}
            lines.append(json.dumps({"type": "MODIFIED", "object": item}).encode() + b"\n")
        chunks.append(b"".join(lines))
    return chunks


def application() -> web.Application:
    """Serve pages, and a watch of pods whose events start after a request for `/go`."""
    pages = {
        "/api/v1/nodes": _pages("Node", map(node, range(NODES))),
        "/api/v1/pods": _pages("Pod", (pod(n, n + 1) for n in range(PODS))),
        "/apis/batch/v1/jobs": _pages("Job", map(job, range(JOBS))),
        "/apis/gpu.scheduling/v1/gpunodestatuses": _pages("GpuNodeStatus", map(node_status, range(NODES))),
    }
    nothing = _pages("Nothing", ())
    events = _events()
    go = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/go":
            go.set()
            return web.Response()
        if "watch" not in request.query:
            found = pages.get(request.path, nothing)
            return web.Response(
                body=found[int(request.query.get("continue") or 0)], content_type="application/json"
            )
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path == "/api/v1/pods" and request.query["resourceVersion"] == str(VERSION):
            await go.wait()
            loop = asyncio.get_running_loop()
            started = loop.time()
            for tenth, chunk in enumerate(events):
                await asyncio.sleep(max(0.0, started + tenth / 10 - loop.time()))
                await response.write(chunk)
        await asyncio.sleep(600)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    return app


if __name__ == "__main__":
    asyncio.run(fake_kube_api.serve(application()))
