"""gpufleet db backfill, as a command, against a real Prometheus and a real database."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.accounting.expected import expected_hour, stored_hour
from tests.accounting.past import PRICE, SETTINGS, openmetrics, past
from tests.prometheus_fixture import running_prometheus

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import open_store

DAY = 86_400


def moment(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(at))


async def test_backfilled_hours_equal_the_reference_for_every_exporter(
    store_settings: StoreSettings, tmp_path: Path
) -> None:
    now = int(time.time()) // 3600 * 3600
    # Two exporters, one after the other, and neither runs any more.
    parts = [("dcgm", past(now - 5 * DAY, 3)), ("nvidia-smi", past(now - 3 * DAY, 2, seed=2))]
    (tmp_path / "gpufleet.toml").write_text(SETTINGS)
    async with open_store(store_settings) as store:
        for _, part in parts:
            await part.write(store, "default")
        with running_prometheus("global: {}\n", openmetrics(parts)) as url:
            shown = [_backfill(part.starts, store_settings.url, url, tmp_path) for _, part in parts]
            for (_, part), lines in zip(parts, shown, strict=True):
                assert len(lines) == part.hours
                for hour, line in zip(part.starts, lines, strict=True):
                    expected = expected_hour(
                        hour, part.held, part.capacities, part.samples(hour), PRICE, read=part.scraped()
                    )
                    assert await stored_hour(store, "default", hour) == expected
                    workloads = sum(what == "workload" for what, _ in expected)
                    assert line == f"default {moment(hour)}: {workloads} workloads"
            first = parts[0][1].starts
            before = await store.database.fetch("SELECT * FROM workload_hour ORDER BY hour, workload")
            assert _backfill(first, store_settings.url, url, tmp_path) == shown[0]
            after = await store.database.fetch("SELECT * FROM workload_hour ORDER BY hour, workload")
            assert after == before


def _backfill(hours: range, database: str, prometheus: str, folder: Path) -> list[str]:
    words = ["db", "backfill", "--from", moment(hours[0]), "--to", moment(hours[-1])]
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet", *words],
        cwd=folder,
        env={**os.environ, "DATABASE_URL": database, "PROMETHEUS_URL": prometheus},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
