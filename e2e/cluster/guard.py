"""Kill the processes that a test run started, however the run ends.

If the test runner is killed, neither `finally` nor `atexit` runs. So a small second process keeps a list of process
groups and reads its standard input: the kernel closes that pipe when the runner ends for any reason. The guard then
kills the remaining groups and removes the directory. It needs 8 MB and, unlike a parent-death signal, does not
depend on the thread that started a component.
"""

import subprocess
import sys
from pathlib import Path

_SOURCE = """
import os, shutil, signal, sys, time
groups = set()
for line in sys.stdin:
    sign, group = line.split()
    (groups.add if sign == "+" else groups.discard)(int(group))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
for attempt in range(50):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


class Guard:
    """Kills process groups and removes one directory when it is closed or this process ends."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SOURCE, str(directory)],
            stdin=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,  # not interrupted by Ctrl-C in the terminal
        )

    def watch(self, group: int) -> None:
        """Kill this process group at the end."""
        self._send(f"+ {group}")

    def forget(self, group: int) -> None:
        """Do not kill this group: it has ended, and its id may be reused."""
        self._send(f"- {group}")

    def close(self) -> None:
        """Kill the remaining groups, remove the directory and wait until both are done."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(timeout=30)

    def _send(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
