"""Count our modules that a claim pod, and a request for workloads, pass on their way.

Functions are traced while a pod goes from its creation to Bound on the embedded API (extender mode, one node, without
webhook and agent), and while the server answers one request. `GPUFLEET_WAYS=1` lists the modules.
"""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

import httpx
from tests.scheduler.stage import open_server, open_stage
from tests.server.live.conftest import known_fleet

import gpufleet
from bench.result import Result
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.metric_source import MetricSource
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.live.workloads import workload_routes

_FOLDER = str(Path(gpufleet.__file__).parent)


def measure() -> Iterable[Result]:
    # No more than today; the goals are 45 and 22.
    yield from _results("a pod from create to Bound", asyncio.run(_pod()), 86)
    yield from _results("a request to /api/workloads", asyncio.run(_request()), 25)


def _results(name: str, modules: Counter[str], most: int) -> Iterator[Result]:
    note = " ".join(sorted(modules)) if os.environ.get("GPUFLEET_WAYS") else ""
    yield Result(f"modules: {name}", len(modules), "", at_most=most, note=note)
    yield Result(f"functions: {name}", sum(modules.values()), "")


@contextmanager
def _traced() -> Iterator[Counter[str]]:
    """Count the functions of each of our modules that run within the block."""
    codes = set[object]()
    found = Counter[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in codes and code.co_filename.startswith(_FOLDER):
            codes.add(code)
            found[code.co_filename.removeprefix(f"{_FOLDER}/").removesuffix(".py")] += 1

    sys.setprofile(profile)
    threading.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _pod() -> Counter[str]:
    async with open_server() as server, open_stage(server) as stage:
        await stage.node("a")
        await stage.claim("warm")
        await stage.schedule(await stage.pod("warm", "warm"))
        with _traced() as modules:
            await stage.claim("one")
            await stage.schedule(await stage.pod("p", "one"))

            async def bound() -> bool:
                return (await stage.read_claim("one")).status.phase == "Bound"

            while not await bound():  # noqa: ASYNC110  (the claim's status is written later)
                await asyncio.sleep(0.05)
    return modules


async def _request() -> Counter[str]:
    fleet = known_fleet()
    # The list of workloads reads no metrics.
    clusters = Clusters([Cluster("prod", fleet, Listing(fleet), cast(MetricSource, None))])
    transport = httpx.ASGITransport(create_app(Api(routes=workload_routes(clusters))))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await http.get("/api/workloads")
        with _traced() as modules:
            answer = await http.get("/api/workloads?status=Running")
    assert answer.status_code == 200, answer.text
    return modules
