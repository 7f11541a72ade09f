"""End what this process started, however it ends.

A test runner may be killed outright, and then no `finally` and no `atexit` runs. So the process groups are told
to a small second process which waits for the end of its standard input: the kernel closes that pipe with the
runner, whatever ended it. The guard then kills the groups that are left and removes the directory. It costs
8 MB, and unlike a parent-death signal it does not depend on the thread that started a component.
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
    """Watches over process groups and one directory until it is closed or this process ends."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SOURCE, str(directory)],
            stdin=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )

    def watch(self, group: int) -> None:
        """Kill this process group at the end."""
        self._tell(f"+ {group}")

    def forget(self, group: int) -> None:
        """The group has ended; its number may soon be somebody else's."""
        self._tell(f"- {group}")

    def close(self) -> None:
        """Kill what is left, remove the directory, and wait until that is done."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(timeout=30)

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
