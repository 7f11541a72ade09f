"""Reflectors of kinds that a server may lack, or serve in an older version only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from structlog.testing import capture_logs
from tests.kubernetes.faulty_server import FAST
from tests.scheduler.stage import POD_GROUPS_CRD
from tests.waiting import wait_until

from gpufleet.kubernetes import POD_GROUPS, Connection, KubeClient, Reflector
from gpufleet.kubernetes.objects import PodGroup
from kubelite import KubeLite

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
GROUP = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
NEWER = replace(POD_GROUPS, version="v1")


@asynccontextmanager
async def running(reflector: Reflector[PodGroup]) -> AsyncIterator[None]:
    task = asyncio.create_task(reflector.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_missing_optional_kind_is_no_warning_and_is_found_once_it_is_served() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        timings = replace(FAST, absent=0.3)
        reflector = Reflector(client, POD_GROUPS, timings=timings, optional=True)
        with capture_logs() as log:
            async with running(reflector):
                await wait_until(lambda: reflector.state.lists == 2)
                assert [entry["event"] for entry in log] == ["kind_not_served"]
                assert log[0]["log_level"] == "debug"
                assert reflector.state.failures == 0
                await client.write_json("POST", CRDS, POD_GROUPS_CRD)
                await client.write_json("POST", GROUPS, GROUP)
                await wait_until(lambda: reflector.cache.get("g", "default") is not None)


async def test_an_optional_kind_that_is_not_served_is_looked_for_seldom() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        reflector = Reflector(client, POD_GROUPS, timings=FAST, optional=True, older=(NEWER,))
        async with running(reflector):
            await wait_until(lambda: reflector.state.lists == 2)
            await asyncio.sleep(0.3)  # FAST would have tried ten times
            assert reflector.state.lists == 2, "once for each version"


async def test_a_kind_is_watched_in_the_version_that_is_served() -> None:
    async with KubeLite() as server, KubeClient(Connection(server.url, token=server.token)) as client:
        await client.write_json("POST", CRDS, POD_GROUPS_CRD)
        reflector = Reflector(client, NEWER, timings=FAST, optional=True, older=(POD_GROUPS,))
        async with running(reflector):
            await wait_until(lambda: reflector.state.watching)
            await client.write_json("POST", GROUPS, GROUP)
            await wait_until(lambda: reflector.cache.get("g", "default") is not None)
