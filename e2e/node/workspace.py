"""Act as the users of one namespace whose pods run on a real node."""

from typing import Any

from e2e.cluster import Cluster
from e2e.node.gpus import Access
from e2e.node.node import Node
from e2e.node.pods import container

ALL = frozenset(range(8))
"""The GPUs of the node."""
RESTARTABLE = "while [ ! -e /tmp/stop ]; do sleep 0.2; done"
"""The script of a container that `NodeWorkspace.restart` can end."""
Json = dict[str, Any]


class NodeWorkspace:
    """Reads and restarts pods, and checks which GPUs their containers open."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        self.cluster, self.node, self.namespace = cluster, node, namespace
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    def read(self, name: str) -> Json:
        """Return a pod."""
        found: Json = self.cluster.api.get(f"{self.pods}/{name}")
        return found

    def restarts(self, name: str) -> int | None:
        """Return how often the running main container was restarted, or None if it does not run."""
        for status in self.read(name)["status"].get("containerStatuses", ()):
            if "running" in status["state"]:
                return int(status["restartCount"])
        return None

    def wait_running(self, name: str) -> None:
        """Wait until the main container runs."""
        self.cluster.wait_for(f"running pod {name}", lambda: self.restarts(name) is not None, timeout=90)

    def restart(self, name: str) -> None:
        """End the main container and wait until the kubelet has started it again."""
        self.exec(name, "touch", "/tmp/stop")
        self.cluster.wait_for(f"restarted container of {name}", lambda: self.restarts(name) == 1)

    def exec(self, name: str, *command: str) -> str:
        """Run a command in the main container and return its output."""
        return self.cluster.kubectl("exec", name, "--namespace", self.namespace, "--", *command)

    def check(self, name: str, gpus: frozenset[int]) -> None:
        """Check that the main container and the init container `fetch` open exactly these GPUs."""
        expected = Access(nodes=gpus, opens=gpus, denied=ALL - gpus)
        assert self.node.access(self.namespace, name) == expected
        assert Access.parse(self.node.logs(self.namespace, name, "fetch")) == expected

    def debug(self, name: str) -> Access:
        """Add an ephemeral container that probes the GPUs, and return what it found."""
        ephemeral = container("debugger", f"{self.node.probe}\nexec sleep 1000", resources={})
        body = {"spec": {"ephemeralContainers": [ephemeral]}}
        path = f"{self.pods}/{name}/ephemeralcontainers"
        self.cluster.api.patch(path, body, "application/strategic-merge-patch+json")

        def probed() -> str:
            statuses = self.read(name)["status"].get("ephemeralContainerStatuses", ())
            if not any("running" in each["state"] for each in statuses):
                return ""
            lines = self.node.logs(self.namespace, name, "debugger")
            return lines if f" {max(ALL)}" in lines else ""

        return Access.parse(self.cluster.wait_for("a probe by the ephemeral container", probed))
