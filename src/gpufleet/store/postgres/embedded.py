"""PostgreSQL as a child of ours, for everybody who has no server of their own.

It listens on a Unix socket in the data directory only, with fsync on. It is started in a
session of its own under a keeper, a shell of two lines that stops it when our end of a pipe
closes: on a clean stop, and as well if we are killed. If the server itself dies it is
started again, with growing pauses, for as long as we live; callers meanwhile repeat.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil

from gpufleet.errors import StoreUnavailable
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.data_directory import DATABASE, DataDirectory, dsn_at, prepare
from gpufleet.store.postgres.errors import BROKEN
from gpufleet.store.postgres.lock import sole_user

_LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.5432")
_LARGEST_LOG = 16 * 1024 * 1024
_STOP_SECONDS = 30.0
_LONGEST_PAUSE = 10.0
_log = get_logger("store")


@asynccontextmanager
async def embedded_server(
    settings: StoreSettings, options: Mapping[str, str] | None = None
) -> AsyncIterator["EmbeddedServer"]:
    """The server in `settings.data`, started; stopped at the end. `options` are postgresql.conf's."""
    data = settings.data.expanduser().resolve()
    with sole_user(data):
        sockets = _socket_folder(data)
        try:
            cluster = await asyncio.to_thread(prepare, data / "postgres", sockets, data / "postgres.log")
            server = EmbeddedServer(
                cluster, {**_options(settings), **(options or {})}, settings.start_timeout
            )
            await server.start()
            try:
                yield server
            finally:
                await asyncio.shield(server.stop())
        finally:
            if sockets.parent != data:
                shutil.rmtree(sockets, ignore_errors=True)


def running_server(settings: StoreSettings) -> str | None:
    """How to connect to the server that another process of ours runs in `settings.data`, if one does."""
    pgdata = settings.data.expanduser().resolve() / "postgres"
    try:
        noted = (pgdata / "postmaster.pid").read_text().splitlines()
        pid, sockets = int(noted[0]), Path(noted[4])
    except (OSError, ValueError, IndexError):
        return None
    return dsn_at(sockets, DATABASE) if _serves(pid, pgdata) else None


class EmbeddedServer:
    """A running server; `embedded_server` makes it."""

    def __init__(self, cluster: DataDirectory, options: Mapping[str, str], patience: float) -> None:
        self.cluster = cluster
        self._options = options
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._care: asyncio.Task[None] | None = None

    @property
    def dsn(self) -> str:
        """How to connect."""
        return self.cluster.dsn

    async def start(self) -> None:
        """Start the server, wait until it answers, and see to it from then on."""
        if self.cluster.log.exists() and self.cluster.log.stat().st_size > _LARGEST_LOG:
            self.cluster.log.replace(self.cluster.log.with_suffix(".log.old"))
        await _clear_the_place(self.cluster)
        self._process = self.cluster.spawn(self._options)
        try:
            await self._until_ready()
        except BaseException:
            await self.stop()
            raise
        self._care = asyncio.create_task(self._restart_if_it_dies(), name="embedded PostgreSQL")
        _log.info("database_started", pid=self.cluster.postmaster(), data=str(self.cluster.pgdata))

    async def stop(self) -> None:
        """Stop the server cleanly: sessions are ended, everything is on disk."""
        if self._care is not None:
            self._care.cancel()
            await asyncio.gather(self._care, return_exceptions=True)
            self._care = None
        process, self._process = self._process, None
        if process is None:
            return
        await asyncio.to_thread(_end, process, self.cluster)
        _log.info("database_stopped")

    async def _until_ready(self) -> None:
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._patience
        while True:
            try:
                connection = await asyncpg.connect(self.cluster.dsn_of("postgres"), timeout=5)
                break
            except BROKEN:
                assert self._process is not None
                if self._process.poll() is not None or clock.time() > deadline:
                    raise StoreUnavailable(
                        f"the embedded PostgreSQL does not start; its log {self.cluster.log} ends with:\n"
                        f"{self.cluster.last_words()}"
                    ) from None
                await asyncio.sleep(0.05)
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    async def _restart_if_it_dies(self) -> None:
        pause = 0.2
        started = asyncio.get_running_loop().time()
        while True:
            assert self._process is not None
            if self._process.poll() is None:
                await asyncio.sleep(0.1)
                continue
            _log.error(
                "database_died", status=self._process.returncode, last_words=self.cluster.last_words(3)
            )
            _close_pipe(self._process)
            if asyncio.get_running_loop().time() - started > 60:
                pause = 0.2
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            started = asyncio.get_running_loop().time()
            self._process = self.cluster.spawn(self._options)
            _log.info("database_restarted")


async def _clear_the_place(cluster: DataDirectory) -> None:
    """See off what an earlier run left: a server without a parent, or a pid file that names a stranger."""
    for moment in range(round(_STOP_SECONDS * 10)):
        pid = cluster.postmaster()
        if pid is None:
            return
        if not _serves(pid, cluster.pgdata):
            # PostgreSQL would take the stranger for a server of ours and refuse to start
            _log.warning("removed_stale_pid_file", pid=pid)
            (cluster.pgdata / "postmaster.pid").unlink(missing_ok=True)
            return
        if moment == 10:  # its keeper had a second to end it
            _log.warning("stopping_database_left_by_an_earlier_run", pid=pid)
            os.kill(pid, signal.SIGINT)
        await asyncio.sleep(0.1)
    raise StoreUnavailable(
        f"a PostgreSQL left by an earlier run (pid {pid}) does not stop; end it and start again"
    )


def _serves(pid: int, pgdata: Path) -> bool:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return bool(words) and Path(words[0]).name.startswith("postgres") and str(pgdata) in words


def _end(process: "subprocess.Popen[bytes]", cluster: DataDirectory) -> None:
    _close_pipe(process)
    for force in (None, signal.SIGQUIT, signal.SIGKILL):
        pid = cluster.postmaster()
        if force is not None and pid is not None and _serves(pid, cluster.pgdata):
            _log.warning("database_stops_by_force", signal=force.name)
            os.kill(pid, force)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()
    process.wait()


def _close_pipe(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()


def _socket_folder(data: Path) -> Path:
    folder = data / "run"
    if len(os.fsencode(folder)) <= _LONGEST_SOCKET_FOLDER:
        return folder
    return Path(tempfile.mkdtemp(prefix="gpufleet-"))


def _options(settings: StoreSettings) -> dict[str, str]:
    return {
        "max_connections": str(settings.pool_size + 20),
        "shared_buffers": "64MB",
        "max_wal_size": "256MB",
        "min_wal_size": "64MB",
        "wal_compression": "on",
        "log_checkpoints": "off",
        "log_min_messages": "warning",
        "log_line_prefix": "%m [%p] ",
    }
