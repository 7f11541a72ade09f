"""The whole of gpufleet on the control plane: charts installed by helm, and a local process for each of their pods.

with System(cluster, nodes, {"node-a": switched(8)}) as system:
    cluster.kubectl("get", "gns")
    httpx.get(system.server.url + "/api/clusters/overview", headers=system.login())
"""

from e2e.system.database import Database
from e2e.system.observations import Observations
from e2e.system.pod_processes import PodProcess, PodProcesses
from e2e.system.prometheus import Prometheus
from e2e.system.release import Release
from e2e.system.system import System
from e2e.system.users import Users

__all__ = [
    "Database",
    "Observations",
    "PodProcess",
    "PodProcesses",
    "Prometheus",
    "Release",
    "System",
    "Users",
]
