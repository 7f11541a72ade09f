"""A `gpufleet demo` of one's own: the real process, started as a stranger would, with data that goes away."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Demo:
    """Where a demo serves its page, and its Kubernetes-shaped API."""

    address: str
    kube: str

    def get(self, path: str) -> Any:
        """The data of an answer of the API."""
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return json.load(answer)["data"]

    def cordon(self, node: str, cordoned: bool) -> None:
        """What `kubectl cordon` and `uncordon` send."""
        body = json.dumps({"spec": {"unschedulable": cordoned}}).encode()
        request = urllib.request.Request(f"{self.kube}/api/v1/nodes/{node}", body, method="PATCH")
        request.add_header("content-type", "application/strategic-merge-patch+json")
        urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def running_demo(nodes: int, days: float = 7.0) -> Iterator[Demo]:
    """A demo that has started; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-demo-") as folder:
        words = [sys.executable, "-m", "gpufleet", "demo", "--data", folder, "--port", "0"]
        words += ["--nodes", str(nodes), "--days", str(days)]
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, text=True, env=_plain())
            try:
                address = _address(process, said.name)
                _until_past_is_written(Path(folder))
                (config,) = Path(folder).glob("demo/*/kubeconfig")
                kube = re.search(r"server: (\S+)", config.read_text())
                assert kube
                yield Demo(address, kube[1])
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


def _until_past_is_written(folder: Path) -> None:
    """The demo serves before the oldest of its past is in the books; it notes when all of it is."""
    deadline = time.monotonic() + 300
    while not list(folder.glob("demo/*/demo.json")):
        assert time.monotonic() < deadline, "the demo did not finish its past"
        time.sleep(0.1)


def _plain() -> dict[str, str]:
    """The environment without settings that somebody may have for another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_")}
