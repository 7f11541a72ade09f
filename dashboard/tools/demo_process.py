"""Run `gpufleet demo` as a separate process on a temporary data directory."""

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

from gpufleet.kubernetes.client.connection import load_connection


@dataclass(frozen=True)
class Demo:
    """The addresses of a running demo's dashboard and of its Kubernetes API, which takes a token."""

    address: str
    kube: str
    token: str

    def get(self, path: str) -> Any:
        """Return the `data` of an API response."""
        with urllib.request.urlopen(self.address + path, timeout=30) as response:
            return json.load(response)["data"]

    def first(self, path: str) -> Any:
        """Return the first object of a list of the API; wait for it, because a running demo changes."""
        for _ in range(300):
            if found := self.get(path)["data"]:
                return found[0]
            time.sleep(0.1)
        raise AssertionError(f"{path} had no object for 30 s")

    def get_objects(self, path: str) -> list[dict[str, Any]]:
        """Return the objects of a list of the Kubernetes API."""
        request = urllib.request.Request(self.kube + path)
        request.add_header("authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=30) as response:
            items: list[dict[str, Any]] = json.load(response)["items"]
            return items

    def cordon(self, node: str, cordoned: bool) -> None:
        """Send the patch of `kubectl cordon` or `kubectl uncordon`."""
        body = json.dumps({"spec": {"unschedulable": cordoned}}).encode()
        request = urllib.request.Request(f"{self.kube}/api/v1/nodes/{node}", body, method="PATCH")
        request.add_header("authorization", f"Bearer {self.token}")
        request.add_header("content-type", "application/strategic-merge-patch+json")
        urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def running_demo(nodes: int, days: float = 7.0) -> Iterator[Demo]:
    """Start a demo, wait until its history is complete, and stop it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-demo-") as folder:
        command = [sys.executable, "-m", "gpufleet", "demo", "--data", folder, "--port", "0"]
        command += ["--nodes", str(nodes), "--days", str(days)]
        with (Path(folder) / "stderr").open("w+") as stderr:
            env = _env_without_settings()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)
            try:
                address = _wait_for_address(process, Path(stderr.name))
                _wait_for_history(Path(folder))
                (config,) = Path(folder).glob("demo/*/kubeconfig")
                kube = load_connection(str(config))
                yield Demo(address, kube.server, str(kube.token))
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)


def _wait_for_address(process: "subprocess.Popen[str]", stderr: Path) -> str:
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if "Ctrl-C" in line:
            break
    found = re.search(r"http://127\.0\.0\.1:\d+/", printed)
    assert found, f"the demo did not start:\n{printed}{stderr.read_text()}"
    return found[0]


def _wait_for_history(folder: Path) -> None:
    """Wait for demo.json: the demo serves before its oldest hours are recorded, and writes the file after."""
    deadline = time.monotonic() + 300
    while not list(folder.glob("demo/*/demo.json")):
        assert time.monotonic() < deadline, "the demo did not record its history within 300 s"
        time.sleep(0.1)


def _env_without_settings() -> dict[str, str]:
    """Return the environment without GPUFLEET_ variables, which may belong to another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_")}
