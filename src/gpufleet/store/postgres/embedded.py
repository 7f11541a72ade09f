"""Run PostgreSQL as a child process, for users without a database server.

The server listens only on a Unix socket in the data directory, with fsync on. It runs in its own session
under a shell wrapper that stops it when our end of a pipe closes: on a clean stop, and also when our
process is killed. If the server dies, it is restarted with exponential backoff, while callers retry.
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
from gpufleet.store.postgres.data_directory import (
    DATABASE,
    DataDirectory,
    database_directory,
    dsn_at,
    prepare,
)
from gpufleet.store.postgres.database import LONG_READ_POOL_SIZE
from gpufleet.store.postgres.directory_lock import lock_data_directory
from gpufleet.store.postgres.errors import DATABASE_ERRORS

_MAX_SOCKET_DIRECTORY = 107 - len("/.s.PGSQL.5432")
_MAX_LOG_BYTES = 16 * 1024 * 1024
_STOP_SECONDS = 30.0
_MIN_BACKOFF, _MAX_BACKOFF = 0.2, 10.0
_log = get_logger("store")


@asynccontextmanager
async def embedded_server(
    settings: StoreSettings, options: Mapping[str, str] | None = None
) -> AsyncIterator["EmbeddedServer"]:
    """Run the server in `settings.data`; `options` are settings of postgresql.conf."""
    data = settings.data.expanduser().resolve()
    with lock_data_directory(data):
        pgdata = await asyncio.to_thread(database_directory, data)
        sockets = _socket_directory(pgdata.parent)
        try:
            cluster = await asyncio.to_thread(prepare, pgdata, sockets, data / "postgres.log")
            server = EmbeddedServer(
                cluster, {**_options(settings), **(options or {})}, settings.start_timeout
            )
            await server.start()
            try:
                yield server
            finally:
                await asyncio.shield(server.stop())
        finally:
            if sockets.parent != pgdata.parent:
                shutil.rmtree(sockets, ignore_errors=True)


def running_server(settings: StoreSettings) -> str | None:
    """Return the DSN of the server that another gpufleet process runs in `settings.data`; None if there is none."""
    pgdata = (settings.data.expanduser() / "postgres").resolve()
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
        pid, sockets = int(lines[0]), Path(lines[4])
    except (OSError, ValueError, IndexError):
        return None
    return dsn_at(sockets, DATABASE) if _serves(pid, pgdata) else None


class EmbeddedServer:
    """A PostgreSQL child process; created by `embedded_server`."""

    def __init__(self, cluster: DataDirectory, options: Mapping[str, str], start_timeout: float) -> None:
        self.cluster = cluster
        self._options = options
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the gpufleet database."""
        return self.cluster.dsn

    async def start(self) -> None:
        """Start the server, wait until it accepts connections, and restart it whenever it dies."""
        if self.cluster.log.exists() and self.cluster.log.stat().st_size > _MAX_LOG_BYTES:
            self.cluster.log.replace(self.cluster.log.with_suffix(".log.old"))
        await _stop_leftover(self.cluster)
        self._process = self.cluster.spawn(self._options)
        try:
            await self._wait_until_ready()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="embedded PostgreSQL")
        _log.info("database_started", pid=self.cluster.postmaster(), data=str(self.cluster.pgdata))

    async def stop(self) -> None:
        """Shut the server down cleanly."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        process, self._process = self._process, None
        if process is None:
            return
        await asyncio.to_thread(_shut_down, process, self.cluster)
        _log.info("database_stopped")

    async def _wait_until_ready(self) -> None:
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._start_timeout
        while True:
            try:
                connection = await asyncpg.connect(self.cluster.dsn_of("postgres"), timeout=5)
                break
            except DATABASE_ERRORS:
                assert self._process is not None
                if self._process.poll() is not None or clock.time() > deadline:
                    raise StoreUnavailable(
                        f"the embedded PostgreSQL does not start; its log {self.cluster.log} ends with:\n"
                        f"{self.cluster.log_tail()}"
                    ) from None
                await asyncio.sleep(0.05)
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    async def _supervise(self) -> None:
        clock = asyncio.get_running_loop()
        backoff = _MIN_BACKOFF
        started = clock.time()
        while True:
            assert self._process is not None
            if self._process.poll() is None:
                await asyncio.sleep(0.1)
                continue
            _log.error("database_died", status=self._process.returncode, log_tail=self.cluster.log_tail(3))
            _close_pipe(self._process)
            if clock.time() - started > 60:
                backoff = _MIN_BACKOFF
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF)
            started = clock.time()
            self._process = self.cluster.spawn(self._options)
            _log.info("database_restarted")


async def _stop_leftover(cluster: DataDirectory) -> None:
    """Stop an orphaned server of an earlier run, or remove its stale pid file."""
    for attempt in range(round(_STOP_SECONDS * 10)):
        pid = cluster.postmaster()
        if pid is None:
            return
        if not _serves(pid, cluster.pgdata):
            # PostgreSQL would take the other process for a server and refuse to start
            _log.warning("removed_stale_pid_file", pid=pid)
            (cluster.pgdata / "postmaster.pid").unlink(missing_ok=True)
            return
        if attempt == 10:  # the wrapper had a second to stop it
            _log.warning("stopping_leftover_database", pid=pid)
            os.kill(pid, signal.SIGINT)
        await asyncio.sleep(0.1)
    raise StoreUnavailable(
        f"a PostgreSQL of an earlier run (pid {pid}) does not stop; kill it and start again"
    )


def _serves(pid: int, pgdata: Path) -> bool:
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return bool(command) and Path(command[0]).name.startswith("postgres") and str(pgdata) in command


def _shut_down(process: "subprocess.Popen[bytes]", cluster: DataDirectory) -> None:
    _close_pipe(process)
    for force in (None, signal.SIGQUIT, signal.SIGKILL):
        pid = cluster.postmaster()
        if force is not None and pid is not None and _serves(pid, cluster.pgdata):
            _log.warning("database_force_stopped", signal=force.name)
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


def _socket_directory(data: Path) -> Path:
    directory = data / "run"
    if len(os.fsencode(directory)) <= _MAX_SOCKET_DIRECTORY:
        return directory
    return Path(tempfile.mkdtemp(prefix="gpufleet-"))


def _options(settings: StoreSettings) -> dict[str, str]:
    return {
        "max_connections": str(settings.pool_size + LONG_READ_POOL_SIZE + 20),
        "shared_buffers": "64MB",
        "max_wal_size": "256MB",
        "min_wal_size": "64MB",
        "wal_compression": "on",
        "log_checkpoints": "off",
        "log_min_messages": "warning",
        "log_line_prefix": "%m [%p] ",
    }
