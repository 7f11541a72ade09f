"""A real Prometheus that scrapes the processes of the charts, as their PodMonitors and ServiceMonitors configure it."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from tests.prometheus_fixture import binaries

from e2e.cluster import Cluster
from e2e.cluster.cluster import free_ports
from e2e.cluster.rest import is_healthy
from e2e.system.pod_processes import PodProcesses

_CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: agent
    honor_labels: true
    file_sd_configs: [{{files: ["{folder}/agents.json"], refresh_interval: 1s}}]
  - job_name: scheduler
    file_sd_configs: [{{files: ["{folder}/schedulers.json"], refresh_interval: 1s}}]
"""


class Prometheus:
    """A context manager that runs Prometheus; tests can kill and restart `process`."""

    def __init__(self, cluster: Cluster) -> None:
        self._tools = binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="prometheus-", dir=cluster.directory))
        (self._folder / "prometheus.yml").write_text(_CONFIGURATION.format(folder=self._folder))
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        command = [
            str(self._tools.prometheus),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        environment = cluster.commands.environment()
        self.process = cluster.process(
            "prometheus", command, environment, lambda: is_healthy(f"{self.url}/-/ready")
        )

    def scrape(self, processes: PodProcesses) -> None:
        """Scrape the agents and schedulers among `processes` from now on."""
        for file, component in (("agents", "agent"), ("schedulers", "scheduler")):
            targets = [
                {
                    "targets": [each.url.removeprefix("http://")],
                    "labels": {"pod": each.name, "namespace": processes.namespace},
                }
                for each in processes.of(component)
            ]
            updated = self._folder / f"{file}.new"
            updated.write_text(json.dumps(targets))
            updated.replace(self._folder / f"{file}.json")

    def query(self, promql: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query over HTTP."""
        response = httpx.get(f"{self.url}/api/v1/query", params={"query": promql}, timeout=10)
        found: list[dict[str, Any]] = response.raise_for_status().json()["data"]["result"]
        return found

    def promtool(self, promql: str) -> list[dict[str, Any]]:
        """Return the samples of `promtool query instant`."""
        command = [str(self._tools.promtool), "query", "instant", "--format=json", self.url, promql]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
        shutil.rmtree(self._folder)
