"""A real node on this machine: kubelet, containerd and runc, joined to the control plane of a `Cluster`.

The processes share a PID and a mount namespace of their own, so that nothing is left when its first process is
killed: neither containers nor mounts (see `init.py`). Eight character devices stand for GPUs (see `gpus.py`). Pods
have `hostNetwork`, and an image that is imported from a file.

    with Node(cluster, programs) as node:
        cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("one", runtimeClassName="nvidia"))
        node.access(namespace, "one").opens
"""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.cluster import Cluster, Component, RequestFailed
from e2e.cluster.cluster import free_ports
from e2e.cluster.network import Backend
from e2e.cluster.rest import is_healthy
from e2e.node import configuration, gpus, image
from e2e.node.configuration import Layout, PodNetwork
from e2e.node.programs import Programs

_CGROUPS = Path("/sys/fs/cgroup")


class Node:
    """A context manager that starts and stops the node. Each node of a cluster needs its own name."""

    def __init__(
        self,
        cluster: Cluster,
        programs: Programs,
        name: str = "real",
        gpu_count: int = 8,
        *,
        pods: PodNetwork | None = None,
        snapshotter: str = "native",
    ) -> None:
        """With the network `pods`, pods have addresses of their own, and the node has the usual paths."""
        self.name = name
        self.cluster = cluster
        self.programs = programs
        self.layout = Layout(cluster.directory / name, usual=pods is not None)
        self._pods_network, self._snapshotter = pods, snapshotter
        self._port, self._health_port = free_ports(2)
        self.layout.root.mkdir()
        self.gpus = gpus.create(self.layout.devices, gpu_count)
        configuration.write_containerd(self.layout, programs, pods, snapshotter)
        configuration.write_kubelet(self.layout, self._port, self._health_port, pods)
        gpus.write_cdi_spec(self.layout.gpus_spec, self.layout.devices, self.gpus)
        self.namespaces = self._namespaces()
        self.containerd: Component | None = None
        self.kubelet: Component | None = None
        self.components: list[Component] = []

    # Start and stop

    def start(self) -> None:
        """Start everything and wait until the node is ready and has the image."""
        self.namespaces.start(10)
        socket_path = self.layout.containerd_socket
        self.containerd = self.process(
            "containerd",
            [str(self.programs.containerd), "--config", str(self.layout.containerd_config)],
            lambda: _accepts(socket_path),
            env={"PATH": f"{self.programs.directory}{os.pathsep}{os.environ['PATH']}"},
        )
        self.containerd.start(30)
        self._import_image()
        self.kubelet = self.process("kubelet", self._kubelet_command(), self._kubelet_is_healthy)
        self.kubelet.start(60)
        self.cluster.network.route(f"{self.name}:{self._port}", [Backend(self._port, lambda: True)])
        self.cluster.wait_for(f"ready node {self.name}", self.is_ready)

    def stop(self) -> None:
        """Delete the node and its pods, kill every process, and remove the cgroups."""
        with contextlib.suppress(RequestFailed):
            self.cluster.api.delete(f"/api/v1/nodes/{self.name}")
        containers = self._containers()
        for component in [*reversed(self.components), self.namespaces]:
            _kill(component)
        with contextlib.suppress(RequestFailed):
            for pod in self._pods():
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                self.cluster.api.delete(f"{path}?gracePeriodSeconds=0")
        _remove_cgroups(containers)
        shutil.rmtree(self.layout.root)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def restart_kubelet(self) -> None:
        """Kill the kubelet, start it again and wait until it knows its pods; containers keep running."""
        assert self.kubelet
        _kill(self.kubelet)
        self.kubelet.start(60)
        self.cluster.wait_for("pods in the kubelet", self._kubelet_knows_its_pods)

    def process(
        self, name: str, command: list[str], ready: Callable[[], bool], env: dict[str, str] | None = None
    ) -> Component:
        """Return another program in the node's namespaces, which ends with the node at the latest."""
        enter = ["nsenter", f"--target={self._first_pid()}", "--mount", "--pid", "--"]
        environment = {**os.environ, **(env or {})}
        component = self.cluster.process(f"{self.name}-{name}", [*enter, *command], environment, ready)
        self.components.append(component)
        return component

    # The node in the cluster

    def is_ready(self) -> bool:
        """Return whether the kubelet reports the node as ready."""
        try:
            node = self.cluster.api.get(f"/api/v1/nodes/{self.name}")
        except RequestFailed:
            return False
        conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
        return conditions.get("Ready") == "True"

    @property
    def probe(self) -> str:
        """The shell script with which a container finds out what it can open."""
        return gpus.probe_script(self.gpus)

    def access(self, namespace: str, pod: str, container: str = "main") -> gpus.Access:
        """Return what a running container can open, by `kubectl exec`."""
        where = ("--namespace", namespace, "--container", container)
        output = self.cluster.kubectl("exec", pod, *where, "--", "sh", "-c", self.probe)
        return gpus.Access.parse(output)

    def logs(self, namespace: str, pod: str, container: str = "main", *flags: str) -> str:
        """Return the log of a container."""
        return self.cluster.kubectl("logs", pod, "--container", container, *flags, namespace=namespace)

    def _kubelet_knows_its_pods(self) -> bool:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = (
            False,
            ssl.CERT_NONE,
        )  # the kubelet makes its own certificate
        with urllib.request.urlopen(
            f"https://127.0.0.1:{self._port}/pods", timeout=10, context=trust
        ) as answer:
            known = [pod["metadata"]["uid"] for pod in json.load(answer)["items"] or ()]
        return {pod["metadata"]["uid"] for pod in self._pods()} <= set(known)

    def _pods(self) -> list[dict[str, Any]]:
        pods = self.cluster.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")
        return list(pods["items"])

    # Processes

    def _namespaces(self) -> Component:
        directory = self.layout.root / "init"
        directory.mkdir()
        script = Path(__file__).with_name("init.py")
        command = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation=private",
        ]
        command += [sys.executable, "-I", "-S", str(script), str(directory)]
        return self.cluster.process(self.name, command, os.environ, (directory / "ready").exists)

    def _first_pid(self) -> int:
        """Return the id of the first process in the namespaces, as the machine counts."""
        parent = self.namespaces.pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def _kubelet_command(self) -> list[str]:
        identity = self.cluster.user(f"system:node:{self.name}", "system:nodes")
        return [
            str(self.programs.kubelet),
            f"--config={self.layout.kubelet_config}",
            f"--kubeconfig={identity.kubeconfig}",
            f"--hostname-override={self.name}",
            f"--root-dir={self.layout.kubelet}",
            f"--cert-dir={self.layout.root / 'kubelet-pki'}",
            *([f"--node-ip={address}"] if (address := self._address()) else []),
        ]

    def _address(self) -> str:
        return self._pods_network.address if self._pods_network else _address()

    def _kubelet_is_healthy(self) -> bool:
        return is_healthy(f"http://127.0.0.1:{self._health_port}/healthz")

    def _import_image(self) -> None:
        archive = self.layout.root / "image.tar"
        image.write(archive, self.programs.busybox)
        self.import_image(archive)

    def import_image(self, archive: Path) -> None:
        """Unpack the image of a docker archive."""
        self._ctr("images", "import", "--local", "--snapshotter", self._snapshotter, str(archive))

    def _containers(self) -> list[str]:
        """Return the ids of all containers and sandboxes."""
        running = self.containerd and self.containerd.running
        return self._ctr("containers", "list", "--quiet").split() if running else []

    def _ctr(self, *arguments: str) -> str:
        command = [str(self.programs.ctr), "--address", str(self.layout.containerd_socket), "-n", "k8s.io"]
        done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=300)
        return done.stdout


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return path.exists() and probe.connect_ex(str(path)) == 0


def _address() -> str:
    """Return this machine's own address, which the kubelet reports; it is never connected to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # UDP: chooses a route and sends nothing
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if address.startswith("127.") else address


def _kill(component: Component) -> None:
    """Kill a component and wait until its whole group has ended: nsenter ends before the program that it started."""
    group = component.pid
    component.kill()
    deadline = time.monotonic() + 10
    while group and time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)


def _remove_cgroups(containers: Sequence[str]) -> None:
    """Remove the cgroups of killed containers; runc would have done so."""
    for name in containers:
        for root in [*_CGROUPS.glob(f"k8s.io/{name}"), *_CGROUPS.glob(f"*/k8s.io/{name}")]:
            for directory, _, _ in os.walk(root, topdown=False):
                os.rmdir(directory)
            with contextlib.suppress(OSError):  # there are other containers
                os.rmdir(root.parent)
