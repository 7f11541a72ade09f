"""Gangs on nodes of one rack or NVLink domain, on the embedded API."""

from typing import Any

import pytest
from tests.scheduler.stage import Stage
from tests.scheduler.test_gangs import GATED, bind_all

from gpufleet.kubernetes.objects import Pod

RACK = "topology.kubernetes.io/rack"


async def racks(stage: Stage) -> None:
    """Two racks of two nodes with two GPUs; one node of each is in use."""
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r2"), ("e", "r3")):
        await stage.node(name, gpus=2, labels={RACK: rack})
    await stage.claim("two", 2)


async def gang(stage: Stage, **topology: Any) -> list[Pod]:
    await stage.group("g", 2)
    await stage.claim("of-g", 2, spec={"gangRef": "g", "topology": {"mode": "Ignore", **topology}})
    return [await stage.pod(f"m{at}", "of-g", **GATED) for at in range(2)]


async def nodes(stage: Stage, pods: list[Pod]) -> list[str]:
    await stage.planned()
    assert await bind_all(stage, pods) == ["", ""]
    return sorted([(await stage.read(pod)).spec.node_name for pod in pods])


async def test_a_required_level_keeps_a_gang_in_one_group(stage: Stage) -> None:
    await racks(stage)
    assert await stage.schedule(await stage.pod("p", "two"), "a") == "a"
    assert await nodes(stage, await gang(stage, level=RACK)) == ["c", "d"]


@pytest.mark.parametrize("mode", ["Required", "Preferred"])
async def test_only_a_preferred_level_spreads_a_gang_if_no_group_fits(stage: Stage, mode: str) -> None:
    await racks(stage)
    running = await stage.pod("p", "two")
    assert await stage.schedule(running, "a") == "a"
    assert await stage.schedule(await stage.pod("q", "two"), "c") == "c"
    members = await gang(stage, level=RACK, levelMode=mode)
    if mode == "Preferred":
        assert len(await nodes(stage, members)) == 2
        return
    await stage.until(lambda: f"1 of 2 members fit on nodes with the same {RACK}" in stage.note("g"))
    assert "4 GPUs of " in stage.note("g")
    await stage.delete(running)
    assert await nodes(stage, members) == ["a", "b"]


async def test_an_unknown_level_is_named(stage: Stage) -> None:
    await racks(stage)
    await gang(stage, level="example.com/row")
    await stage.until(lambda: "example.com/row is none of the topology levels" in stage.note("g"))
