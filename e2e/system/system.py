"""Run the whole product: both charts installed, a process for each pod, PostgreSQL, Prometheus.

The chart values set here only shorten periods, so that tests take seconds instead of minutes, and point to the
database and the Prometheus of this machine.
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
from tests.fake_clock import clock_ahead
from tests.shim.nvml import State

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.system.database import Database
from e2e.system.pod_processes import PodProcess, PodProcesses
from e2e.system.prometheus import Prometheus
from e2e.system.release import CRDS, Release, delete_crds

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
    """A context manager that installs gpufleet, waits until it is ready, and removes it with its CRDs."""

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
        """The process of the server."""
        return self.processes.one("server")

    @property
    def server_values(self) -> dict[str, Any]:
        """Values of the server's chart, with this machine's database and Prometheus."""
        local = {
            "database": {"url": self.database.url},
            "prometheus": {"url": self.prometheus.url},
            "kubernetes": {"leaseNamespace": self.namespace},
        }
        return merged(self._server_values, local)

    def login(self, account: str = "default") -> dict[str, str]:
        """Return headers with a token of a service account, made by `kubectl create token`. The default is a viewer."""
        token = self.cluster.kubectl("create", "token", account, namespace=self.namespace).strip()
        return {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        """Return the `data` of a response of the server's API. Fail on any status but 200."""
        response = httpx.get(self.server.url + path, headers=self._headers(), timeout=30)
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text}"
        return response.json()["data"]

    def upgrade(self) -> None:
        """Upgrade the CRDs and both releases to the current charts, as docs/install.md describes."""
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
        self.scheduler_release.upgrade(self.scheduler_values)
        self.server_release.upgrade(self.server_values)
        self.reconcile()

    def uninstall(self) -> None:
        """Uninstall both releases. Stop their processes first, while their service accounts still have their rights."""
        self.processes.stop()
        while self._installed:
            self._installed.pop().uninstall()
        self.cluster.kubectl("delete", "clusterrolebinding", self._viewer_binding, "--ignore-not-found")

    def __enter__(self) -> Self:
        try:
            self.database = self._closing.enter_context(Database(self.cluster.directory))
            self.prometheus = self._closing.enter_context(Prometheus(self.cluster))
            self._closing.callback(delete_crds, self.cluster)
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
        """Return the holder of each GPU lease, such as `gpu-node-a-0`."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return {
            each["metadata"]["name"]: each["spec"]["holderIdentity"]
            for each in self.cluster.api.get(path)["items"]
            if _GPU_LEASE.fullmatch(each["metadata"]["name"])
        }

    def gpus_in_use(self) -> list[str]:
        """Return the GPUs that an agent reports in use, or draining: those of a deleted pod, until its next report."""
        return [
            f"{status['metadata']['name']}:{device['id']}"
            for status in self.cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
            for device in status.get("status", {}).get("devices", ())
            if device.get("inUseBy") or device.get("drainingPods")
        ]

    def gpufleet(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run `gpufleet` with the settings of the server."""
        environment = {**self.server.program.environment, **variables}
        command = [sys.executable, "-m", "gpufleet", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=environment, check=False
        )

    def set_utilization(self, node: str, gpus: Mapping[int, int]) -> None:
        """Set the utilization of GPUs in percent and wait until the server has read it from Prometheus.

        Otherwise a snapshot could charge older readings to the next workload on these GPUs.
        """
        for gpu, percent in gpus.items():
            self.processes.gpus[node].set(f"{gpu}.utilization", percent)

        def read() -> bool:
            rows = self.get("/api/v1/gpu/metrics")
            found = {row["gpu_index"]: row["utilization"] for row in rows if row["node_name"] == node}
            return gpus.items() <= found.items()

        self.cluster.wait_for(f"readings of {node}", read)

    def backfill_hours(self, since: datetime) -> None:
        """Compute the hours from `since` to now, including the current one."""
        now = datetime.now(UTC)
        hours = [f"{moment:%Y-%m-%dT%H:00Z}" for moment in (since, now)]
        command = ("db", "backfill", "--from", hours[0], "--to", hours[1])
        done = self.gpufleet(*command, **clock_ahead(3600))
        assert done.returncode == 0, done.stderr

    def reconcile(self, timeout: float = 120) -> None:
        """Start and stop processes, and update scrape targets, to match the existing pods."""
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
        self._bind_viewer()
        self.reconcile()

    def _bind_viewer(self) -> None:
        """Let the default service account read, as docs/install.md describes."""
        role = self._viewer_binding.removesuffix("-e2e") + "-viewer"
        account = f"--serviceaccount={self.namespace}:default"
        self.cluster.kubectl(
            "create", "clusterrolebinding", self._viewer_binding, f"--clusterrole={role}", account
        )

    @property
    def _viewer_binding(self) -> str:
        return "gpufleet-e2e" if self.namespace == "default" else f"{self.namespace}-gpufleet-e2e"

    def _headers(self) -> dict[str, str]:
        if not hasattr(self, "_login"):
            self._login = self.login()
        return self._login


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge chart values as helm does."""
    result = dict(base)
    for key, value in overrides.items():
        current = result.get(key)
        result[key] = (
            merged(current, value) if isinstance(current, Mapping) and isinstance(value, Mapping) else value
        )
    return result
