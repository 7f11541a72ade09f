"""A cluster as users have it: control plane, kube-proxy, DNS and one node, whose pods have addresses and Services.

Everything runs in a network namespace of its own (see `namespace.py`), on a bridge that is gateway of the pods, DNS
server, node and API server at one address. The node's processes end with the node, the others with the control plane,
however the test ends.

    with own_network(BRIDGE, ADDRESS + "/24"), Machine(control_plane, node_programs, network_programs) as machine:
        machine.node.import_image(archive)
        machine.cluster.helm("install", ...)
"""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from e2e.cluster import Cluster
from e2e.cluster.binaries import Binaries
from e2e.machine.programs import NetworkPrograms
from e2e.node import Node
from e2e.node.configuration import PodNetwork
from e2e.node.programs import Programs

BRIDGE, ADDRESS, RANGE = "pods0", "10.244.0.1", "10.244.0.0/24"

_RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


class Machine:
    """A context manager that starts and stops the cluster; use it inside of `own_network`."""

    def __init__(self, control_plane: Binaries, node: Programs, network: NetworkPrograms) -> None:
        self.cluster = Cluster(control_plane, address=ADDRESS)
        self._node_programs, self._network_programs = node, network
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            self._start_proxy()
            self._start_dns()
            pods = PodNetwork(BRIDGE, ADDRESS, RANGE, self._network_programs.directory)
            self.node = stack.enter_context(
                Node(self.cluster, self._node_programs, pods=pods, snapshotter="overlayfs")
            )
            self.cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", _RUNTIME_CLASS)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def service(self, namespace: str, name: str) -> str:
        """Return the address of a Service, which this process can reach as pods can."""
        spec = self.cluster.api.get(f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]
        return f"{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def _start_proxy(self) -> None:
        programs, directory = self._network_programs, self.cluster.directory
        identity = self.cluster.user("system:kube-proxy")
        log = self.cluster.logs / "kube-proxy.log"
        command = [
            str(programs.kube_proxy),
            f"--kubeconfig={identity.kubeconfig}",
            "--proxy-mode=iptables",
            "--masquerade-all",  # replies between two pods on the bridge come back through the address of the Service
            "--conntrack-max-per-core=0",  # is a setting of the whole machine
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--hostname-override=real",
            "--bind-address=127.0.0.1",
        ]
        environment = programs.environment(directory / "iptables")
        proxy = self.cluster.process(
            "kube-proxy",
            command,
            environment,
            lambda: log.exists() and "Caches are synced" in log.read_text(),
        )
        proxy.start(60)

    def _start_dns(self) -> None:
        reader = self.cluster.user("coredns", "system:masters")
        file = self.cluster.directory / "Corefile"
        file.write_text(
            ".:53 {\n  errors\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {reader.kubeconfig}\n  }}\n}}\n"
        )
        log = self.cluster.logs / "coredns.log"
        dns = self.cluster.process(
            "coredns",
            [str(self._network_programs.coredns), f"-conf={file}"],
            {"PATH": "/usr/bin:/bin"},
            lambda: log.exists() and "CoreDNS-" in log.read_text(),
        )
        dns.start(60)
