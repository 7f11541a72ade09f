import os
import stat
from pathlib import Path

import asyncpg
import pytest

from gpufleet.errors import OperationRefused
from gpufleet.store.postgres.data_directory import DataDirectory, prepare


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
@pytest.mark.parametrize("private", ["data", "programs"])
def test_a_private_parent_directory_is_left_alone(
    postgres: DataDirectory, empty_data: Path, private: str
) -> None:
    empty_data.chmod(0o755)
    closed = empty_data / "closed"
    closed.mkdir(mode=0o700)
    folder = postgres.programs
    if private == "programs":
        folder = closed / "bin"
        folder.mkdir()
        (folder / "postgres").touch()
    inside = (closed if private == "data" else empty_data) / "data"
    inside.mkdir()
    with pytest.raises(OperationRefused, match=rf"may not search {closed}: .*chmod o\+x {closed}"):
        prepare(inside / "postgres", inside / "run", inside / "log", folder=folder)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert list(inside.iterdir()) == []


def test_a_directory_of_another_version_is_refused_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(
        OperationRefused, match=r"was created by PostgreSQL 9, but this gpufleet contains \d+"
    ):
        prepare(tmp_path / "postgres", tmp_path / "run", tmp_path / "log")
