"""gpufleet db prune and backfill on a real database."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time as wall_time

import numpy as np
import pytest
from tests.accounting.histories import HOUR, STEP, Prometheus, Server, Time, World, pod

from gpufleet.cli import main
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import GpuRef, Quantity
from gpufleet.model.statistics import HoursQuery
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import open_store
from gpufleet.store.readings.chunks import ReadingGrid


async def _history(settings: StoreSettings) -> None:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=4, gpu_model="H200", created=HOUR - 9000.0)
    world.pods["p"] = pod("p", "a", 2, HOUR + 0.0, held=(0, 1), labels={"team": "nlp"})
    time = Time(HOUR + 1.0)
    async with open_store(settings) as store:
        metrics = Prometheus({("a", 0, HOUR + m * STEP): 50.0 for m in range(12)})
        server = Server(world, store, metrics, time)
        await server.round()
        time.now = HOUR + 3650.0
        await server.round()
        await store.accounted.set_stored_until("prod", wall_time())


@pytest.fixture
def history(store_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    asyncio.run(_history(store_settings))
    monkeypatch.setenv("DATABASE_URL", store_settings.url)
    return store_settings


def test_prune_shows_what_it_would_delete_and_then_deletes_it(
    history: StoreSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "prune", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    partition = "snapshot_2021_05 (about 0 rows, from 2021-05-01T00:00Z to 2021-06-01T00:00Z)"
    assert f"{partition} would be deleted" in shown
    assert main(["db", "prune"]) == 0
    assert "would be deleted" in capsys.readouterr().out, "without --confirm it is a dry run"
    assert main(["db", "prune", "--confirm"]) == 0
    assert f"{partition} deleted" in capsys.readouterr().out
    assert main(["db", "prune", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "nothing is older than its retention" in shown


def test_a_dry_run_shows_the_last_deletions_with_their_rows(
    history: StoreSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    async def analyze() -> None:
        async with open_store(history) as store:
            await store.database.execute("ANALYZE gpufleet.snapshot_2021_05")

    asyncio.run(analyze())
    assert main(["db", "prune", "--confirm"]) == 0
    capsys.readouterr()
    assert main(["db", "prune"]) == 0
    [run] = [line for line in capsys.readouterr().out.splitlines() if "snapshot_2021_05" in line]
    assert run.endswith("2 rows of snapshot_2021_05")
    assert f"/{os.getpid()}: " in run


def test_confirm_contradicts_a_dry_run(history: StoreSettings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "prune", "--confirm", "--dry-run"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_backfill_keeps_what_it_cannot_measure_and_makes_up_nothing(
    history: StoreSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gpufleet.toml"
    config.write_text("[clusters.prod.accounting]\nlabel_keys = ['team']\n")
    words = ["--from", "2021-05-03T00:00Z", "--to", "2021-05-03T02:00Z", "--config", str(config)]
    assert main(["db", "backfill", *words]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "prod 2021-05-03T00:00Z: kept, the readings are gone",
        "prod 2021-05-03T01:00Z: 1 workloads",
        "prod 2021-05-03T02:00Z: no data, no rows",
    ]
    assert main(["db", "backfill", *words[:4]]) == 1
    assert "cluster 'default' has no accounting data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "needs --from and --to"),
        (["--from", "soon", "--to", "2021-05-03"], "--from: 'soon' is wrong"),
        (["--from", "2021-05-03", "--to", "2999-01-01"], "not over yet"),
        (["--from", "2021-05-04", "--to", "2021-05-03"], "must not be after"),
        (["--from", "2021-05-03", "--to", "2021-05-03", "--cluster", "x"], "no cluster 'x'"),
    ],
)
def test_backfill_refuses_wrong_arguments(
    history: StoreSettings, capsys: pytest.CaptureFixture[str], words: list[str], shown: str
) -> None:
    assert main(["db", "backfill", *words]) == 2
    assert shown in capsys.readouterr().err


async def _forgotten(settings: StoreSettings) -> None:
    """An hour whose holder is long gone, with readings that are still there."""
    world = World({"a": FleetNode(name="a", gpu_count=4, gpu_model="H200", created=HOUR - 9000.0)})
    world.pods["p"] = pod("p", "a", 2, HOUR + 0.0, held=(0, 1))
    time = Time(HOUR + 1.0)
    async with open_store(settings) as store:
        metrics = Prometheus({("a", 0, HOUR + m * STEP): 50.0 for m in range(12)})
        server = Server(world, store, metrics, time)
        await server.round()
        time.now = HOUR + 3650.0
        server.fleet.drop_pod("p")
        await server.round()
        await store.accounted.set_stored_until("prod", wall_time())
        for quarter in range(HOUR, HOUR + 3600, 900):
            moments = np.arange(quarter, quarter + 900, STEP, dtype=np.float64)
            grid = ReadingGrid((GpuRef("a", 0),), moments, moments[None, :], np.full((1, 3), 50.0))
            await store.readings.append_past("prod", [(Quantity.UTILIZATION, grid)])


async def _gpu_hours(settings: StoreSettings) -> list[float]:
    query = HoursQuery(cluster="prod", first=HOUR // 3600, last=HOUR // 3600, limit=10)
    async with open_store(settings) as store:
        return [row.allocated_gpu_hours for row in await store.statistics.cluster_hours(query)]


def test_backfill_keeps_an_hour_whose_allocation_periods_were_pruned(
    store_settings: StoreSettings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncio.run(_forgotten(store_settings))
    monkeypatch.setenv("DATABASE_URL", store_settings.url)
    config = tmp_path / "gpufleet.toml"
    kept = [f"{what}_retention = '9999d'" for what in ("snapshot", "workload", "hour", "ended")]
    config.write_text("\n".join(["[accounting]", *kept, "[clusters.prod.accounting]"]))
    hour = ["--from", "2021-05-03T00:00Z", "--to", "2021-05-03T00:59Z", "--config", str(config)]
    assert main(["db", "prune", "--confirm", "--config", str(config)]) == 0
    assert (
        "1 rows of holding, cluster prod, from 2021-05-03T01:00Z to 2021-05-03T01:00Z, deleted"
        in capsys.readouterr().out
    )
    assert main(["db", "backfill", *hour]) == 0
    assert capsys.readouterr().out == ("prod 2021-05-03T00:00Z: kept, the allocation periods were pruned\n")
    assert asyncio.run(_gpu_hours(store_settings)) == [2.0]


def test_backfill_takes_any_moment_of_an_hour_that_is_over(
    history: StoreSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    last = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(seconds=1)
    assert main(["db", "backfill", "--from", last.isoformat(), "--to", last.isoformat()]) == 1
    assert "cluster 'default' has no accounting data" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["prune"], ["backfill", "--from", "2021-05-03", "--to", "2021-05-03"]])
def test_a_missing_database_is_reported(
    action: list[str],
    empty_postgres_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["db", *action, "--data", str(tmp_path / "data")]) != 0
    assert "create it with gpufleet db upgrade" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    monkeypatch.setenv("DATABASE_URL", empty_postgres_url)
    assert main(["db", *action]) != 0
    assert "create them with gpufleet db upgrade" in capsys.readouterr().err
