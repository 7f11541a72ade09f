"""A `gpufleet demo` of one's own: the real process, started as a stranger would, with data that goes away."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_demo(nodes: int, days: float = 7.0) -> Iterator[str]:
    """The address of a demo that has started; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-demo-") as folder:
        words = [sys.executable, "-m", "gpufleet", "demo", "--data", folder, "--port", "0"]
        words += ["--nodes", str(nodes), "--days", str(days)]
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True, env=_plain())
            try:
                yield _address(process, said.name)
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)


def _address(process: "subprocess.Popen[str]", said: str) -> str:
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if "Ctrl-C" in line:
            break
    found = re.search(r"http://127\.0\.0\.1:\d+/", printed)
    assert found, f"the demo did not start:\n{printed}{Path(said).read_text()}"
    return found[0]


def _plain() -> dict[str, str]:
    """The environment without settings that somebody may have for another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_")}
