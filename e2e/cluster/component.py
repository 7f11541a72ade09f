"""One process of the control plane: start it, wait for it, stop, pause, kill or restart it.

Each runs in a session of its own, so that a signal reaches its whole group and Ctrl-C in the terminal reaches none
of them. Its output is appended to one log, over restarts too.
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
    """A process with a name, a log, and a way to ask whether it is ready."""

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
        """The process, if there is one."""
        return self._process.pid if self._process else None

    @property
    def is_ready(self) -> bool:
        """Whether it is there and says that it is ready."""
        return self.running and self._ready()

    @property
    def running(self) -> bool:
        """Whether the process is there (a paused one is)."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 120) -> None:
        """Start it and wait until it is ready."""
        self.spawn()
        self.wait(timeout)

    def spawn(self) -> None:
        """Start it, and leave the waiting for later."""
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
        """Wait until it is ready; an early end or `timeout` seconds raise, with the end of its log."""
        deadline = time.monotonic() + timeout
        while not self._ready():
            if not self.running:
                raise ComponentFailed(f"{self.name} ended with {self._status()}", self.tail())
            if time.monotonic() > deadline:
                raise ComponentFailed(f"{self.name} was not ready after {timeout:g} s", self.tail())
            time.sleep(0.05)

    def terminate(self) -> None:
        """Ask it to end, as an operator would, and leave the waiting for later."""
        if self.running:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)

    def stop(self, timeout: float = 10) -> None:
        """Ask it to end; after `timeout` seconds kill it."""
        if self.running:
            self.terminate()
            try:
                assert self._process
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End it at once, as a machine that loses power would."""
        if self._process is None:
            return
        if self.running:
            self._signal(signal.SIGKILL)
        self._process.wait()
        self._guard.forget(self._process.pid)
        self._process = None

    def restart(self, timeout: float = 120) -> None:
        """Stop it, start it, wait until it is ready."""
        self.stop()
        self.start(timeout)

    def pause(self) -> None:
        """Freeze it: connections stay open, and nothing answers on them."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Frozen for the length of a `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @property
    def log_size(self) -> int:
        """How long its log is: the `start` for `tail` that shows only what comes next."""
        return self.log.stat().st_size if self.log.exists() else 0

    def tail(self, lines: int = 30, start: int = 0) -> str:
        """The last lines of its log that were written after the byte `start`."""
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
