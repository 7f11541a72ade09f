"""Run a local process for each pod of the charts.

Controllers create the pods, kube-scheduler binds them, fake nodes report them as running but execute nothing. So
each pod gets a process with its container's arguments, its environment as the fake node resolved it (downward API,
secrets), its volumes and a token of its service account. Services lead to these processes (see
`e2e/cluster/network.py`). `reconcile` starts and stops processes to match the current pods, for example after an
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

COMPONENTS = ("scheduler", "kube-scheduler", "webhook", "agent", "repair", "server")
"""Values of the label `app.kubernetes.io/component` in gpufleet's charts."""

_SELECTOR = "labelSelector=app.kubernetes.io/part-of%3Dgpufleet"
_COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class PodProcess:
    """The process of one pod: `process` starts, stops, kills, pauses and restarts it."""

    component: str
    pod: Mapping[str, Any]
    program: Program
    process: Component

    @property
    def name(self) -> str:
        """The name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def node(self) -> str:
        """The node of the pod."""
        return str(self.pod["spec"]["nodeName"])

    @property
    def url(self) -> str:
        """The address the process listens on."""
        return self.program.url

    @property
    def live(self) -> bool:
        """Whether the liveness probe passes."""
        return self.process.running and _probe(self.url + self.program.live)

    @property
    def ready(self) -> bool:
        """Whether the readiness probe passes."""
        return self.process.running and _probe(self.url + self.program.ready)


class PodProcesses:
    """The processes of all releases in one namespace; `machines` describes the GPUs of each node."""

    def __init__(
        self, cluster: Cluster, nodes: FakeNodes, namespace: str, machines: Mapping[str, State]
    ) -> None:
        self.cluster, self.nodes, self.namespace = cluster, nodes, namespace
        self.gpus: dict[str, NvmlShim] = {}
        """The GPU driver of each node; tests change it while agents read it."""
        self.identity_of: Callable[[str, Identity], Identity] = lambda pod, identity: identity
        """Returns the identity with which a pod's process reaches the API server, possibly through a proxy."""
        self._processes: dict[str, PodProcess] = {}
        self._listening: dict[str, int] = {}
        for node, state in machines.items():
            self.add_machine(node, state)

    def add_machine(self, node: str, state: State) -> None:
        """Give a node GPUs, with UUIDs that no other node has."""
        folder = self._folder("nodes", node)
        self.gpus[node] = NvmlShim(build_shim(), folder)
        self.gpus[node].describe(with_node_uuids(state, node))

    def of(self, component: str, node: str | None = None) -> list[PodProcess]:
        """Return the processes of one component, on one node if given."""
        return [
            each
            for each in self._processes.values()
            if each.component == component and node in (None, each.node)
        ]

    def one(self, component: str, node: str | None = None) -> PodProcess:
        """Return the only process of a component."""
        [process] = self.of(component, node)
        return process

    def pod_logs(self, node: str) -> Path:
        """Return the directory that stands for `/var/log/pods` of a node; tests write container logs there."""
        return self._folder("nodes", node, "log-pods")

    def pod_resources(self, node: str) -> Path:
        """Return the path of the kubelet's pod-resources socket on a node; tests serve there."""
        return self._folder("nodes", node, "lib-kubelet-pod-resources") / "kubelet.sock"

    def reconcile(self, timeout: float = 120) -> None:
        """Stop processes of deleted pods, start those of new pods, and wait until every component is ready."""
        self.cluster.wait_for("running pods of the charts", self._rollouts_complete, timeout=timeout)
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods()}
        for uid in self._processes.keys() - pods.keys():
            self._processes.pop(uid).process.stop()
        # The scheduler first: it creates the Secret that kube-scheduler mounts.
        new = sorted(
            pods.keys() - self._processes.keys(),
            key=lambda uid: COMPONENTS.index(pods[uid]["metadata"]["labels"][_COMPONENT]),
        )
        for uid in new:
            self._processes[uid] = self._create(pods[uid])
            self._processes[uid].process.spawn()
        self._route()
        for each in self._processes.values():
            each.process.wait(timeout)
        self.wait_until_ready(timeout)

    def wait_until_ready(self, timeout: float = 120) -> None:
        """Wait until all processes are ready; of the schedulers, only the leader is."""
        for component in COMPONENTS:
            processes = self.of(component)
            enough = any if component == "scheduler" else all
            if processes:
                self.cluster.wait_for(
                    f"ready {component}",
                    lambda processes=processes, enough=enough: enough(each.ready for each in processes),  # type: ignore[misc]
                    timeout=timeout,
                )

    def stop(self) -> None:
        """Stop all processes."""
        for each in self._processes.values():
            each.process.terminate()
        for each in self._processes.values():
            each.process.stop()
        self._processes.clear()
        self._route()

    # From pods to processes

    def _pods(self) -> list[dict[str, Any]]:
        found = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods?{_SELECTOR}")["items"]
        return [
            pod
            for pod in found
            if pod["metadata"]["labels"].get(_COMPONENT) in COMPONENTS
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") == "Running"
            and pod["spec"]["nodeName"] in self.nodes.names
        ]

    def _rollouts_complete(self) -> bool:
        """Return whether every Deployment and DaemonSet has exactly the pods of its newest template."""
        apps = f"/apis/apps/v1/namespaces/{self.namespace}"
        deployments = self.cluster.api.get(f"{apps}/deployments?{_SELECTOR}")["items"]
        daemon_sets = self.cluster.api.get(f"{apps}/daemonsets?{_SELECTOR}")["items"]
        nodes = len(self.nodes.names)
        return all(_replicas_ready(each) for each in deployments) and all(
            _on_all_nodes(each, nodes) for each in daemon_sets
        )

    def _create(self, pod: Mapping[str, Any]) -> PodProcess:
        name, component = pod["metadata"]["name"], pod["metadata"]["labels"][_COMPONENT]
        [container] = pod["spec"]["containers"]
        context = ContainerContext(
            cluster=self.cluster,
            identity=self.identity_of(
                name,
                self.cluster.service_account(self.namespace, pod["spec"]["serviceAccountName"], pod=pod),
            ),
            variables=self.nodes.environment(self.namespace, name, container["name"]),
            mounts={
                mount["mountPath"]: self._volume(pod, mount["name"])
                for mount in container.get("volumeMounts", [])
                if "serviceaccount" not in mount["mountPath"]
            },
            service=self.service_port,
        )
        local = program(container, context)
        node = pod["spec"]["nodeName"]
        if component == "agent" and node in self.gpus:
            local.environment.update(self.gpus[node].environment())
        live = local.url + local.live
        process = self.cluster.process(name, local.command, local.environment, lambda: _probe(live))
        return PodProcess(component, pod, local, process)

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
        base = f"/api/v1/namespaces/{self.namespace}"
        if "secret" in volume:
            name, items = volume["secret"]["secretName"], volume["secret"].get("items")
            kept = {each["key"] for each in items} if items else None
            data = self.cluster.wait_for(f"Secret {name}", lambda: self._secret(f"{base}/secrets", name))
            return [
                (key, base64.b64decode(value)) for key, value in data.items() if kept is None or key in kept
            ]
        if "configMap" in volume:
            found = self.cluster.api.get(f"{base}/configmaps/{volume['configMap']['name']}")
            return [(key, value.encode()) for key, value in found["data"].items()]
        return []

    def _secret(self, path: str, name: str) -> dict[str, str]:
        """Return the data of a Secret, or nothing if it does not exist yet."""
        found = self.cluster.api.get(f"{path}?fieldSelector=metadata.name%3D{name}")["items"]
        return found[0]["data"] if found else {}

    def _folder(self, *parts: str) -> Path:
        folder = self.cluster.directory.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # From Services to processes

    def _route(self) -> None:
        for service in self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/services?{_SELECTOR}")[
            "items"
        ]:
            selector = service["spec"]["selector"].items()
            selected = [
                each
                for each in self._processes.values()
                if selector <= each.pod["metadata"]["labels"].items()
            ]
            for port in service["spec"]["ports"]:
                backends = [
                    Backend(each.program.ports[port["targetPort"]], lambda each=each: each.ready)  # type: ignore[misc]
                    for each in selected
                    if port["targetPort"] in each.program.ports
                ]
                self.cluster.network.route(f"{service['spec']['clusterIP']}:{port['port']}", backends)

    def service_port(self, host: str, port: int) -> int:
        """Return the port of 127.0.0.1 that leads to a Service (`name.namespace.svc`)."""
        name, namespace, _ = host.split(".")
        found = self.cluster.api.get(f"/api/v1/namespaces/{namespace}/services/{name}")
        address = f"{found['spec']['clusterIP']}:{port}"
        if address not in self._listening:
            self._listening[address] = self.cluster.network.listen(address)
        return self._listening[address]


def with_node_uuids(state: State, node: str) -> State:
    """Return the machine with GPU UUIDs derived from the name of the node."""
    prefix = f"{zlib.crc32(node.encode()):08x}"
    return {key: value.replace("GPU-00000000", f"GPU-{prefix}") for key, value in state.items()}


def _replicas_ready(deployment: Mapping[str, Any]) -> bool:
    counts = ("replicas", "updatedReplicas", "readyReplicas")
    return _has_counts(deployment, counts, deployment["spec"]["replicas"])


def _on_all_nodes(daemon_set: Mapping[str, Any], nodes: int) -> bool:
    """Compare with the number of nodes: its controller may not have counted the newest node yet."""
    return _has_counts(daemon_set, ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady"), nodes)


def _has_counts(workload: Mapping[str, Any], counts: Iterable[str], expected: int) -> bool:
    status = workload["status"]
    if status.get("observedGeneration") != workload["metadata"]["generation"]:
        return False
    return all(status.get(each, 0) == expected for each in counts)


def _probe(url: str) -> bool:
    """Probe like a kubelet, which accepts any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return is_healthy(url, context)
