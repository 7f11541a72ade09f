"""One process of the control plane: start, stop, pause, kill or restart it, and wait until it is ready.

Each process runs in its own session, so that a signal reaches its whole group and Ctrl-C in the terminal does not.
Its output is appended to one log across restarts.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ComponentFailed
from e2e.cluster.guard import Guard


class Component:
    """A process with a name, a log and a readiness check."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        ready: Callable[[], bool],
        guard: Guard,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.environment = environment
        self.command = list(command)
        self.log = log
        self._ready = ready
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None if it was not started."""
        return self._process.pid if self._process else None

    @property
    def is_ready(self) -> bool:
        """Whether it runs and is ready."""
        return self.running and self._ready()

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 120) -> None:
        """Start it and wait until it is ready."""
        self.spawn()
        self.wait(timeout)

    def spawn(self) -> None:
        """Start it without waiting until it is ready."""
        if self.running:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self.environment,
            )
        self._guard.watch(self._process.pid)

    def wait(self, timeout: float = 120) -> None:
        """Wait until it is ready. Raise with the end of its log if it exits or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._ready():
            if not self.running:
                raise ComponentFailed(f"{self.name} exited with {self._status()}", self.tail())
            if time.monotonic() > deadline:
                raise ComponentFailed(f"{self.name} was not ready after {timeout:g} s", self.tail())
            time.sleep(0.05)

    def terminate(self) -> None:
        """Send SIGTERM without waiting for the end."""
        if self.running:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)

    def stop(self, timeout: float = 10) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds."""
        if self.running:
            self.terminate()
            try:
                assert self._process
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """Kill it, like a machine that loses power."""
        if self._process is None:
            return
        if self.running:
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._guard.forget(self._process.pid)
        self._process = None

    def restart(self, timeout: float = 120) -> None:
        """Stop it, start it and wait until it is ready."""
        self.stop()
        self.start(timeout)

    def pause(self) -> None:
        """Freeze it: connections stay open without a response."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze it for a `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @property
    def log_size(self) -> int:
        """The size of its log; pass it to `tail` as `start` to see only later lines."""
        return self.log.stat().st_size if self.log.exists() else 0

    def tail(self, lines: int = 30, start: int = 0) -> str:
        """Return the last lines of its log that were written after byte `start`."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(start, self.log_size - 500 * lines))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if not self.running:
            raise ComponentFailed(f"{self.name} is not running", self.tail())
        assert self._process
        os.killpg(self._process.pid, number)

    def _status(self) -> str:
        code = self._process.poll() if self._process else None
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"
