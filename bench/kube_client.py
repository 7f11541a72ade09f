"""Compare our Kubernetes client with the official one: list 5,000 nodes and 20,000 pods, watch 10,000 events.

Both read the same bytes from the same server, each in its own process, and keep all objects, as a
controller's cache does. Memory is the peak of the process (VmHWM); for the ratio, memory after the
imports is subtracted.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import fake_kube_api
from bench.result import Result


def measure() -> Iterable[Result]:
    with _fleet() as url:
        ours, official = _run("ours", url), _run("official", url)
    for figures in (ours, official):
        assert (figures["nodes"], figures["pods"], figures["events"]) == (
            fake_kube_api.NODES,
            fake_kube_api.PODS,
            fake_kube_api.EVENTS,
        )
    yield from _compare("list of 25,000 objects", "list_s", ours, official)
    yield from _compare("10,000 watch events", "watch_s", ours, official)
    yield Result(
        "peak memory", ours["peak_mib"], "MiB", note=f"official client {official['peak_mib']:,.0f} MiB"
    )
    yield Result(
        "memory relative to the official client",
        ours["grown_mib"] / official["grown_mib"],
        "ratio",
        at_most=0.2,
        note=f"growth after imports: {ours['grown_mib']:,.0f} and {official['grown_mib']:,.0f} MiB",
    )


def _compare(name: str, key: str, ours: dict[str, Any], official: dict[str, Any]) -> Iterator[Result]:
    yield Result(name, ours[key], "s", note=f"official client {official[key]:.1f} s")
    yield Result(f"{name}: times faster", official[key] / ours[key], "×", at_least=10)


@contextmanager
def _fleet() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.fake_kube_api"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def _run(which: str, url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.kube_client", which, url]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _memory(field: str) -> float:
    """Return a field in MiB; not `ru_maxrss`, which a child inherits from its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


async def _ours(url: str) -> dict[str, Any]:
    from gpufleet.kubernetes import NODES, PODS, Connection, KubeClient, Reflector

    before = _memory("VmRSS")
    async with KubeClient(Connection(url), requests_per_second=1000, burst=1000) as client:
        nodes, pods = Reflector(client, NODES), Reflector(client, PODS, freeze=True)
        seen = 0
        all_seen = asyncio.Event()

        def count(changes: Any) -> None:
            nonlocal seen
            if pods.state.synced:
                seen += len(changes)
                if seen == fake_kube_api.EVENTS:
                    all_seen.set()

        pods.subscribe(count)
        started = time.perf_counter()
        tasks = [asyncio.create_task(nodes.run())]
        await nodes.synced()
        tasks.append(asyncio.create_task(pods.run()))
        await pods.synced()
        listed = time.perf_counter()
        await all_seen.wait()
        watched = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return {
            "nodes": len(nodes.cache),
            "pods": len(pods.cache),
            "events": seen,
            "list_s": listed - started,
            "watch_s": watched - listed,
            "peak_mib": _memory("VmHWM"),
            "grown_mib": _memory("VmHWM") - before,
        }


def _official(url: str) -> dict[str, Any]:
    from kubernetes import client, watch

    before = _memory("VmRSS")
    api: Any = client.CoreV1Api(client.ApiClient(client.Configuration(host=url)))
    started = time.perf_counter()
    cache: dict[str, dict[tuple[str, str], Any]] = {}
    for kind, read in (("nodes", api.list_node), ("pods", api.list_pod_for_all_namespaces)):
        items = cache[kind] = {}
        token = None
        while token != "":
            page = read(limit=fake_kube_api.PAGE, _continue=token)
            items.update({(item.metadata.namespace, item.metadata.name): item for item in page.items})
            token = page.metadata._continue or ""
    listed = time.perf_counter()
    seen = 0
    watching: Any = watch.Watch
    stream = watching().stream(
        api.list_pod_for_all_namespaces, resource_version="100000", timeout_seconds=300
    )
    for event in stream:
        item = event["object"]
        cache["pods"][item.metadata.namespace, item.metadata.name] = item
        seen += 1
        if seen == fake_kube_api.EVENTS:
            break
    watched = time.perf_counter()
    return {
        "nodes": len(cache["nodes"]),
        "pods": len(cache["pods"]),
        "events": seen,
        "list_s": listed - started,
        "watch_s": watched - listed,
        "peak_mib": _memory("VmHWM"),
        "grown_mib": _memory("VmHWM") - before,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_ours(sys.argv[2])) if sys.argv[1] == "ours" else _official(sys.argv[2])))
