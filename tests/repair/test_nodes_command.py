"""`gpufleet nodes` on an embedded API."""

import argparse
import asyncio
import json
from datetime import UTC, datetime

import pytest
from msgspec import structs
from tests.repair.conftest import Cluster, fault

from gpufleet.cli import nodes
from gpufleet.errors import InvalidRequest, NotFound
from gpufleet.kubernetes import GPU_REPAIRS
from gpufleet.kubernetes.crds.gpu_repair import Episode, GpuRepair, RepairSpec, RepairStatus
from gpufleet.kubernetes.objects import ObjectMeta

WHEN = datetime(2026, 1, 1, 10, 30, tzinfo=UTC)


async def call(cluster: Cluster, *words: str) -> int:
    parser = argparse.ArgumentParser()
    nodes.arguments(parser)
    arguments = parser.parse_args(words)
    if arguments.verb in ("list", "show"):
        return await nodes._print(cluster.client, arguments)
    return await nodes._change(cluster.client, arguments)


async def test_it_lists_findings_and_repairs(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        await cluster.add_node(name)
    assert await call(cluster) == 0
    await cluster.report("a", fault(2, "xid-79"))
    made = await cluster.client.create(
        GPU_REPAIRS, GpuRepair(metadata=ObjectMeta(name="a"), spec=RepairSpec(node_name="a"))
    )
    earlier = Episode(cause="ecc", opened=WHEN, closed=WHEN, message="ECC errors")
    status = RepairStatus(phase="Manual", message="3 repairs did not help", history=(earlier,))
    await cluster.client.replace(GPU_REPAIRS, structs.replace(made, status=status), subresource="status")
    capsys.readouterr()
    assert await call(cluster) == 1
    assert capsys.readouterr().out.splitlines() == [
        "NODE  GPUS  UNHEALTHY  PHASE      MESSAGE",
        "a        4          1  Manual     3 repairs did not help",
        "  Unhealthy GPU 2  xid-79: xid-79",
        "b        4          0  Healthy",
    ]
    await call(cluster, "show", "a")
    assert "earlier: 2026-01-01 10:30 to 2026-01-01 10:30 ecc: ECC errors" in capsys.readouterr().out
    await call(cluster, "list", "a", "-o", "json")
    assert json.loads(capsys.readouterr().out)[0]["repair"]["phase"] == "Manual"


async def test_operators_acknowledge_silence_and_resume(cluster: Cluster) -> None:
    await cluster.add_node("a")
    with pytest.raises(NotFound, match="there is no node b"):
        await call(cluster, "acknowledge", "b")
    await call(cluster, "acknowledge", "a", "--by", "me")
    await call(cluster, "silence", "a", "--for", "2h")
    await call(cluster, "resume", "a")
    found = await cluster.repair("a")
    assert found is not None
    assert found.spec.acknowledged_by == "me"
    assert found.spec.silenced_until is not None
    assert found.spec.resumed_at is not None
    wait = (found.spec.silenced_until - found.spec.resumed_at).total_seconds()
    assert wait == pytest.approx(7200, abs=60)
    assert found.metadata.owner_references[0].kind == "Node"
    await call(cluster, "silence", "a", "--for", "0s")
    after = await cluster.repair("a")
    assert after is not None
    assert (after.spec.silenced_until, after.spec.acknowledged_by) == (None, "me")


def test_a_verb_without_a_node_says_what_is_missing() -> None:
    parser = argparse.ArgumentParser()
    nodes.arguments(parser)
    with pytest.raises(InvalidRequest, match="which node"):
        asyncio.run(nodes._run(None, parser.parse_args(["resume"])))  # type: ignore[arg-type]
