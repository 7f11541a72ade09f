"""A process of this machine for each pod of the charts.

The pods are there: controllers make them, kube-scheduler binds them, fake nodes play them. A played pod runs nothing,
so for each a process is started with the container's arguments, its environment as the player resolved it (downward
API, secrets), its volumes, and a token of its service account. Services lead to these processes (see
`e2e/cluster/network.py`). `settle` brings the processes in line with the pods that are there now, as after an
upgrade.
"""

import base64
import ssl
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.shim.nvml import NvmlShim, State, build_shim

from e2e.cluster import Cluster, Component, Identity
from e2e.cluster.network import Backend
from e2e.cluster.rest import is_healthy
from e2e.fakenodes import FakeNodes
from e2e.system.container import ContainerContext, Program, program

COMPONENTS = ("scheduler", "kube-scheduler", "webhook", "agent", "server")
"""What gpufleet's charts run, by the label `app.kubernetes.io/component`."""

_OURS = "labelSelector=app.kubernetes.io/part-of%3Dgpufleet"
_COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class PodProcess:
    """The process that stands for one pod: `process` starts, stops, kills, pauses and restarts it."""

    component: str
    pod: Mapping[str, Any]
    program: Program
    process: Component

    @property
    def name(self) -> str:
        """The pod's."""
        return str(self.pod["metadata"]["name"])

    @property
    def node(self) -> str:
        """The pod's node."""
        return str(self.pod["spec"]["nodeName"])

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.program.url

    @property
    def live(self) -> bool:
        """What a liveness probe would find."""
        return self.process.running and _asked(self.url + self.program.live)

    @property
    def ready(self) -> bool:
        """What a readiness probe would find."""
        return self.process.running and _asked(self.url + self.program.ready)


class PodProcesses:
    """The processes of all releases in one namespace; `machines` says which GPUs a node has."""

    def __init__(
        self, cluster: Cluster, nodes: FakeNodes, namespace: str, machines: Mapping[str, State]
    ) -> None:
        self.cluster, self.nodes, self.namespace = cluster, nodes, namespace
        self.gpus: dict[str, NvmlShim] = {}
        """The driver of each node, to be changed while agents read it."""
        self.through: Callable[[str, Identity], Identity] = lambda pod, identity: identity
        """How the process of a pod reaches the API server: as it is, or through a proxy that can be cut."""
        self._processes: dict[str, PodProcess] = {}
        self._listening: dict[str, int] = {}
        for node, state in machines.items():
            self.add_machine(node, state)

    def add_machine(self, node: str, state: State) -> None:
        """Give a node GPUs; no two nodes have a GPU of the same UUID."""
        folder = self._folder("nodes", node)
        self.gpus[node] = NvmlShim(build_shim(), folder)
        self.gpus[node].describe(of_node(state, node))

    def of(self, component: str, node: str | None = None) -> list[PodProcess]:
        """The parts of one component, of one node if it is named."""
        return [
            each
            for each in self._processes.values()
            if each.component == component and node in (None, each.node)
        ]

    def one(self, component: str, node: str | None = None) -> PodProcess:
        """The only one."""
        [part] = self.of(component, node)
        return part

    def pod_logs(self, node: str) -> Path:
        """`/var/log/pods` of a node, for tests to write logs of containers into."""
        return self._folder("nodes", node, "log-pods")

    def pod_resources(self, node: str) -> Path:
        """Where the agent of a node looks for its kubelet's socket, for tests to serve there."""
        return self._folder("nodes", node, "lib-kubelet-pod-resources") / "kubelet.sock"

    def reconcile(self, timeout: float = 120) -> None:
        """End processes whose pods are gone, start those of new pods, and wait until every component is ready."""
        self.cluster.wait_for("running pods of the charts", self._pods_as_wished, timeout=timeout)
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods()}
        for uid in self._processes.keys() - pods.keys():
            self._processes.pop(uid).process.stop()
        for uid in pods.keys() - self._processes.keys():
            self._processes[uid] = self._make(pods[uid])
            self._processes[uid].process.spawn()
        self._route()
        for part in self._processes.values():
            part.process.wait(timeout)
        self.wait_until_ready(timeout)

    def wait_until_ready(self, timeout: float = 120) -> None:
        """Wait until all are ready; of the schedulers, the one that leads."""
        for component in COMPONENTS:
            parts = self.of(component)
            enough = any if component == "scheduler" else all
            if parts:
                self.cluster.wait_for(
                    f"ready {component}",
                    lambda parts=parts, enough=enough: enough(each.ready for each in parts),  # type: ignore[misc]
                    timeout=timeout,
                )

    def stop(self) -> None:
        """End all processes."""
        for part in self._processes.values():
            part.process.terminate()
        for part in self._processes.values():
            part.process.stop()
        self._processes.clear()
        self._route()

    # From pods to processes

    def _pods(self) -> list[dict[str, Any]]:
        found = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods?{_OURS}")["items"]
        return [
            pod
            for pod in found
            if pod["metadata"]["labels"].get(_COMPONENT) in COMPONENTS
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") == "Running"
            and pod["spec"]["nodeName"] in self.nodes.names
        ]

    def _pods_as_wished(self) -> bool:
        """Whether every Deployment and DaemonSet has the pods of its newest template, and no others."""
        apps = f"/apis/apps/v1/namespaces/{self.namespace}"
        deployments = self.cluster.api.get(f"{apps}/deployments?{_OURS}")["items"]
        daemon_sets = self.cluster.api.get(f"{apps}/daemonsets?{_OURS}")["items"]
        nodes = len(self.nodes.names)
        return all(_replicas_ready(each) for each in deployments) and all(
            _on_all_nodes(each, nodes) for each in daemon_sets
        )

    def _make(self, pod: Mapping[str, Any]) -> PodProcess:
        name, component = pod["metadata"]["name"], pod["metadata"]["labels"][_COMPONENT]
        [container] = pod["spec"]["containers"]
        context = ContainerContext(
            cluster=self.cluster,
            identity=self.through(
                name, self.cluster.service_account(self.namespace, pod["spec"]["serviceAccountName"])
            ),
            variables=self.nodes.environment(self.namespace, name, container["name"]),
            mounts={
                mount["mountPath"]: self._volume(pod, mount["name"])
                for mount in container.get("volumeMounts", [])
                if "serviceaccount" not in mount["mountPath"]
            },
            service=self.service_port,
        )
        made = program(container, context)
        node = pod["spec"]["nodeName"]
        if component == "agent" and node in self.gpus:
            made.environment.update(self.gpus[node].environment())
        live = made.url + made.live
        process = self.cluster.process(name, made.command, made.environment, lambda: _asked(live))
        return PodProcess(component, pod, made, process)

    def _volume(self, pod: Mapping[str, Any], name: str) -> Path:
        [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == name]
        if "hostPath" in volume:
            return self._folder(
                "nodes",
                pod["spec"]["nodeName"],
                volume["hostPath"]["path"].removeprefix("/var/").replace("/", "-"),
            )
        folder = self._folder("pods", pod["metadata"]["uid"], name)
        for key, content in self._files(volume):
            (folder / key).write_bytes(content)
        return folder

    def _files(self, volume: Mapping[str, Any]) -> Iterable[tuple[str, bytes]]:
        kept = f"/api/v1/namespaces/{self.namespace}"
        if "secret" in volume:
            found = self.cluster.api.get(f"{kept}/secrets/{volume['secret']['secretName']}")
            return [(key, base64.b64decode(value)) for key, value in found["data"].items()]
        if "configMap" in volume:
            found = self.cluster.api.get(f"{kept}/configmaps/{volume['configMap']['name']}")
            return [(key, value.encode()) for key, value in found["data"].items()]
        return []

    def _folder(self, *parts: str) -> Path:
        folder = self.cluster.directory.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # From Services to processes

    def _route(self) -> None:
        for service in self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/services?{_OURS}")["items"]:
            selector = service["spec"]["selector"].items()
            behind = [
                Backend(part.program.port, lambda part=part: part.ready)  # type: ignore[misc]
                for part in self._processes.values()
                if selector <= part.pod["metadata"]["labels"].items()
            ]
            for port in service["spec"]["ports"]:
                self.cluster.network.route(f"{service['spec']['clusterIP']}:{port['port']}", behind)

    def service_port(self, host: str, port: int) -> int:
        """The port of 127.0.0.1 that leads to a Service (`name.namespace.svc`)."""
        name, namespace, _ = host.split(".")
        found = self.cluster.api.get(f"/api/v1/namespaces/{namespace}/services/{name}")
        address = f"{found['spec']['clusterIP']}:{port}"
        if address not in self._listening:
            self._listening[address] = self.cluster.network.listen(address)
        return self._listening[address]


def of_node(state: State, node: str) -> State:
    """The machine with UUIDs that no other node's GPUs have."""
    mark = f"{zlib.crc32(node.encode()):08x}"
    return {key: value.replace("GPU-00000000", f"GPU-{mark}") for key, value in state.items()}


def _replicas_ready(deployment: Mapping[str, Any]) -> bool:
    counts = ("replicas", "updatedReplicas", "readyReplicas")
    return _counted(deployment, counts, deployment["spec"]["replicas"])


def _on_all_nodes(daemon_set: Mapping[str, Any], nodes: int) -> bool:
    """Its own wish is not asked: its controller may not have heard of the newest node."""
    return _counted(daemon_set, ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady"), nodes)


def _counted(workload: Mapping[str, Any], counts: Iterable[str], wished: int) -> bool:
    status = workload["status"]
    if status.get("observedGeneration") != workload["metadata"]["generation"]:
        return False
    return all(status.get(each, 0) == wished for each in counts)


def _asked(url: str) -> bool:
    """A probe as a kubelet's: any certificate will do."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return is_healthy(url, trusting)
