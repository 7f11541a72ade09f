"""A PostgreSQL server on 127.0.0.1, or on a network of pods, that tests can kill and restart."""

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
"""No fsync: a killed process loses nothing that the kernel already has, and the data need not survive the machine."""


class Database:
    """A context manager that runs the server; clients connect to `url`."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", clients: str = "") -> None:
        """Put all files into a new directory below `directory`; accept also the network `clients`."""
        self._folder = Path(tempfile.mkdtemp(prefix="database-", dir=directory))
        self._cluster = prepare(
            self._folder / "postgres", self._folder / "run", self._folder / "log", durable=False
        )
        [self.port] = free_ports(1)
        self._address = address
        self.url = f"postgresql://gpufleet@{address}:{self.port}/gpufleet"
        if clients:
            with (self._folder / "postgres" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {clients} trust\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = {**_OPTIONS, "listen_addresses": self._address, "port": str(self.port)}
        self._process = self._cluster.spawn(options)
        Cluster.wait_for("PostgreSQL", self._accepts_connections)

    def stop(self) -> None:
        """Shut the server down cleanly."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """End it immediately, like a crash; `start` recovers."""
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

    def _accepts_connections(self) -> bool:
        return self._run("pg_isready").returncode == 0

    def _run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        command = [
            str(self._cluster.programs / program),
            "-h",
            self._address,
            "-p",
            str(self.port),
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, timeout=30, check=False)
