"""gpufleet as a whole on the control plane: charts installed by helm, and a process for each of their pods.

with System(cluster, nodes, {"node-a": switched(8)}) as system:
    cluster.kubectl("get", "gns")
    httpx.get(system.server.url + "/api/clusters/overview", headers=system.login())
"""

from e2e.parts.database import Database
from e2e.parts.journal import Journal
from e2e.parts.parts import Part, Parts
from e2e.parts.prometheus import Prometheus
from e2e.parts.release import Release
from e2e.parts.system import System
from e2e.parts.users import Users

__all__ = ["Database", "Journal", "Part", "Parts", "Prometheus", "Release", "System", "Users"]
