"""A PostgreSQL of its own for the server, on 127.0.0.1, which can be killed and started again."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster import Cluster
from e2e.cluster.cluster import free_ports
from gpufleet.store.postgres.data_directory import DATABASE, prepare

_OPTIONS = {"max_connections": "60", "shared_buffers": "32MB", "synchronous_commit": "on", "fsync": "off"}
"""Without fsync, since nothing outlives the machine; a commit is still in the hands of the kernel when it counts."""


class Database:
    """A context manager; `url` is how to connect."""

    def __init__(self, place: Path) -> None:
        """`place` is where its files go, in a folder of their own."""
        self._folder = Path(tempfile.mkdtemp(prefix="database-", dir=place))
        self._cluster = prepare(
            self._folder / "postgres", self._folder / "run", self._folder / "log", durable=False
        )
        [self.port] = free_ports(1)
        self.url = f"postgresql://gpufleet@127.0.0.1:{self.port}/gpufleet"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = {**_OPTIONS, "listen_addresses": "127.0.0.1", "port": str(self.port)}
        self._process = self._cluster.spawn(options)
        Cluster.wait_for("PostgreSQL", self._answers)

    def stop(self) -> None:
        """A clean end."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """End it at once, as a machine that loses power would; `start` recovers."""
        if pid := self._cluster.postmaster():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        self.stop()

    def __enter__(self) -> Self:
        self.start()
        self._run("createdb", "-U", DATABASE, DATABASE).check_returncode()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        return self._run("pg_isready").returncode == 0

    def _run(self, program: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
        command = [str(self._cluster.programs / program), "-h", "127.0.0.1", "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, timeout=30, check=False)
