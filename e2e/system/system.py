"""The whole product: both charts installed, a process for each pod, PostgreSQL, Prometheus.

The values of the charts do what they would do for a user; those given here only shorten periods, so that a test sees
in seconds what a cluster sees in minutes, and name the database and the Prometheus of this machine.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from tests.shim.nvml import State

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.system.database import Database
from e2e.system.fake_clock import clock_ahead
from e2e.system.pod_processes import PodProcess, PodProcesses
from e2e.system.prometheus import Prometheus
from e2e.system.release import CRDS, Release, remove_definitions

_GPU_LEASE = re.compile(r"gpu-.+-\d+")
SCHEDULER_VALUES: dict[str, Any] = {
    "agent": {"period": "1s"},
    "webhook": {"replicas": 1, "env": [{"name": "GPUFLEET_WEBHOOK_CHECK", "value": "1s"}]},
}
SERVER_VALUES: dict[str, Any] = {
    "accounting": {"snapshotPeriod": "10s", "labelKeys": ["team"]},
    "env": [{"name": "GPUFLEET_METRICS_REFRESH", "value": "1s"}],
}


class System:
    """A context manager: installed and ready inside, removed with its CRDs after."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: FakeNodes,
        machines: Mapping[str, State],
        namespace: str = "gpu-system",
        scheduler_values: dict[str, Any] | None = None,
        server_values: dict[str, Any] | None = None,
        charts: Mapping[str, Path] | None = None,
    ) -> None:
        self.cluster, self.nodes, self.namespace = cluster, nodes, namespace
        self.scheduler_release = Release(cluster, "gpu-scheduler", namespace)
        self.server_release = Release(cluster, "gpufleet", namespace)
        self.processes = PodProcesses(cluster, nodes, namespace, machines)
        self.scheduler_values = merged(SCHEDULER_VALUES, scheduler_values or {})
        self._server_values = merged(SERVER_VALUES, server_values or {})
        self._charts = charts or {}
        self._installed: list[Release] = []
        self._closing = ExitStack()

    @property
    def server(self) -> PodProcess:
        """The server."""
        return self.processes.one("server")

    @property
    def server_values(self) -> dict[str, Any]:
        """The values of the server's chart, with this machine's database and Prometheus."""
        places = {
            "database": {"url": self.database.url},
            "prometheus": {"url": self.prometheus.url},
            "kubernetes": {"leaseNamespace": self.namespace},
        }
        return merged(self._server_values, places)

    def login(self, account: str = "default") -> dict[str, str]:
        """Headers with the token of a service account, as `kubectl create token` gives it."""
        token = self.cluster.kubectl("create", "token", account, namespace=self.namespace).strip()
        return {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        """The `data` of an answer of the server's API; anything but a 200 raises."""
        answer = httpx.get(self.server.url + path, headers=self._headers(), timeout=30)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()["data"]

    def upgrade(self) -> None:
        """`helm upgrade` of both releases to the charts of today, and of the CRDs, as docs/install.md says."""
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
        self.scheduler_release.upgrade(self.scheduler_values)
        self.server_release.upgrade(self.server_values)
        self.reconcile()

    def uninstall(self) -> None:
        """`helm uninstall` of what is installed; processes end first, while their accounts may still do their work."""
        self.processes.stop()
        while self._installed:
            self._installed.pop().uninstall()

    def __enter__(self) -> Self:
        try:
            self.database = self._closing.enter_context(Database(self.cluster.directory))
            self.prometheus = self._closing.enter_context(Prometheus(self.cluster))
            self._closing.callback(remove_definitions, self.cluster)
            self._install()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def leases(self) -> dict[str, str]:
        """The leases of GPUs: who holds `gpu-node-a-0` and others."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return {
            each["metadata"]["name"]: each["spec"]["holderIdentity"]
            for each in self.cluster.api.get(path)["items"]
            if _GPU_LEASE.fullmatch(each["metadata"]["name"])
        }

    def gpufleet(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run `gpufleet` with the settings of the server."""
        environment = {**self.server.program.environment, **variables}
        command = [sys.executable, "-m", "gpufleet", *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=environment, check=False
        )

    def set_utilization(self, node: str, gpus: Mapping[int, int]) -> None:
        """Keep GPUs of a node as busy as this, in percent, and wait until the server has read it from Prometheus.

        A snapshot that is taken sooner would charge what was measured before to whoever gets the GPUs next.
        """
        for gpu, percent in gpus.items():
            self.processes.gpus[node].set(f"{gpu}.utilization", percent)

        def read() -> bool:
            rows = self.get("/api/v1/gpu/metrics")
            found = {row["gpu_index"]: row["utilization"] for row in rows if row["node_name"] == node}
            return gpus.items() <= found.items()

        self.cluster.wait_for(f"readings of {node}", read)

    def backfill_hours(self, since: datetime) -> None:
        """Compute the hours from `since` to now, the one that is not over too."""
        now = datetime.now(UTC)
        hours = [f"{moment:%Y-%m-%dT%H:00Z}" for moment in (since, now)]
        words = ("db", "backfill", "--from", hours[0], "--to", hours[1])
        done = self.gpufleet(*words, **clock_ahead(3600))
        assert done.returncode == 0, done.stderr

    def reconcile(self, timeout: float = 120) -> None:
        """Bring processes and scrapes in line with the pods there are."""
        self.processes.reconcile(timeout)
        self.prometheus.scrape(self.processes)

    def _install(self) -> None:
        if self.namespace != "default":
            self.cluster.create_namespace(self.namespace)
            self._closing.callback(self.cluster.api.delete, f"/api/v1/namespaces/{self.namespace}")
        self._closing.callback(self.uninstall)
        for release, values in (
            (self.scheduler_release, self.scheduler_values),
            (self.server_release, self.server_values),
        ):
            self._installed.append(release)
            release.install(values, self._charts.get(release.name))
        self.reconcile()

    def _headers(self) -> dict[str, str]:
        if not hasattr(self, "_login"):
            self._login = self.login()
        return self._login


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, as helm merges values."""
    result = dict(base)
    for key, value in over.items():
        there = result.get(key)
        result[key] = (
            merged(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else value
        )
    return result
