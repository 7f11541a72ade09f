"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

All files are in one temporary directory: a certificate authority, kubeconfigs, data, logs. A guard process stops the
components and removes the directory even if the test runner is killed.

    with Cluster(binaries.find(print)) as cluster:
        cluster.kubectl("get", "nodes")
"""

import contextlib
import json
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.cluster import arguments, identity
from e2e.cluster.arguments import Files, Ports
from e2e.cluster.binaries import Binaries
from e2e.cluster.commands import Commands
from e2e.cluster.component import Component
from e2e.cluster.errors import ComponentFailed, RequestFailed
from e2e.cluster.guard import Guard
from e2e.cluster.identity import Identity
from e2e.cluster.network import Network
from e2e.cluster.pki import Authority, signing_keys
from e2e.cluster.proxy import Proxy
from e2e.cluster.rest import Rest, is_healthy

_ATTEMPTS = 3


_AUDIT_ENTRY = b'{"kind":"Event"'


def audit_entry(line: bytes) -> dict[str, Any]:
    """Return the entry of a line. A killed API server leaves the beginning of one, and the next entry follows it."""
    entry: dict[str, Any]
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        entry = json.loads(line[line.rindex(_AUDIT_ENTRY) :])
    return entry


class Cluster:
    """A context manager that starts and stops the control plane, and what tests need to use it."""

    def __init__(
        self,
        binaries: Binaries,
        *,
        scheduler: Mapping[str, Any] | None = None,
        node_lifecycle: bool = False,
        audit_bodies: bool = True,
        address: str = arguments.LOOPBACK,
    ) -> None:
        """`address` is that of the API server for pods; on loopback, there are no pods with a network of their own."""
        self.binaries = binaries
        self.directory = Path(tempfile.mkdtemp(prefix="gpufleet-e2e-")).resolve()
        self.directory.chmod(0o711)  # PostgreSQL's user must reach the databases of tests in it
        self._guard = Guard(self.directory)
        self._scheduler_configuration = dict(scheduler or {})
        self._node_lifecycle = node_lifecycle
        self._audit_bodies = audit_bodies
        self._address = address
        self._identities: dict[str, Identity] = {}
        self.logs = self.directory / "logs"
        self.logs.mkdir()
        self._authority = Authority(self.directory / "pki")
        self.network = Network(self.directory / arguments.SERVICES)
        self._prepare()

    def start(self) -> None:
        """Start every component and wait until the cluster is ready for work."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start_components()
                break
            except ComponentFailed as failure:
                # Another process took one of the free ports: choose others.
                if "address already in use" not in str(failure) or attempt == _ATTEMPTS:
                    raise
                self._kill_components()
                self._prepare()
        self.wait_for("the default service account", lambda: self._has_service_account("default"))

    def stop(self) -> None:
        """Kill every component and remove all files; nothing needs a graceful shutdown."""
        self._kill_components()
        self.network.close()
        self._guard.close()

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

    # Access

    @property
    def url(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self._ports.apiserver}"

    @property
    def ca(self) -> Path:
        """The certificate authority that clients trust."""
        return self._authority.certificate

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.admin.kubeconfig

    def user(self, name: str, *groups: str) -> Identity:
        """Return a user with a client certificate; RBAC decides what they may do."""
        file = _file_name("user", name, *groups)
        if file not in self._identities:
            pair = self._authority.user(file, name, groups)
            kubeconfig = self.directory / f"{file}.kubeconfig"
            self._identities[file] = identity.write(
                Identity(name, self.url, self.ca, kubeconfig, certificate=pair)
            )
        return self._identities[file]

    def service_account(
        self, namespace: str, name: str, seconds: int = 3600, pod: Mapping[str, Any] | None = None
    ) -> Identity:
        """Return an existing service account with a new token, bound to `pod` as a kubelet's would be."""
        spec: dict[str, Any] = {"expirationSeconds": seconds}
        file: tuple[str, ...] = ("sa", namespace, name)
        if pod is not None:
            meta = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": meta["name"],
                "uid": meta["uid"],
            }
            file = (*file, meta["name"])
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        response = self.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", body)
        kubeconfig = self.directory / f"{_file_name(*file)}.kubeconfig"
        token = response["status"]["token"]
        return identity.write(Identity(name, self.url, self.ca, kubeconfig, token=token, namespace=namespace))

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Run the real kubectl and return its output. See `Commands.run`."""
        return self.commands.run(self.binaries.kubectl, *arguments, **options)

    def helm(self, *arguments: str, **options: Any) -> str:
        """Run the real helm and return its output. See `Commands.run`."""
        return self.commands.run(self.binaries.helm, *arguments, **options)

    @contextmanager
    def proxy(self) -> Iterator[tuple[Proxy, Identity]]:
        """Return a proxy to the API server that can be cut and stalled, and the administrator's identity through it."""
        with Proxy(self._ports.apiserver) as proxy:
            yield proxy, self.admin.through(proxy.url, f"proxy-{proxy.port}")

    # Components

    @property
    def components(self) -> tuple[Component, ...]:
        """All components in the order in which they start."""
        return (self.etcd, self.apiserver, self.controller_manager, self.scheduler)

    @contextmanager
    def scheduling(self, configuration: Mapping[str, Any]) -> Iterator[None]:
        """Run kube-scheduler with another configuration (profiles, extenders) for a `with` block."""
        self._configure_scheduler(configuration)
        self.scheduler.restart()
        try:
            yield
        finally:
            self._configure_scheduler(self._scheduler_configuration)
            self.scheduler.restart()

    @contextmanager
    def node_lifecycle_controllers(self) -> Iterator[None]:
        """Run the controllers that evaluate node heartbeats for a `with` block."""
        manager = self.controller_manager
        before = manager.command
        manager.command = arguments.controller_manager(self.binaries, self._ports, self._files, True)
        manager.restart()
        try:
            yield
        finally:
            manager.command = before
            manager.restart()

    @contextmanager
    def feature_gates(self, gates: Sequence[str], versions: Sequence[str]) -> Iterator[None]:
        """Run API server and kube-scheduler with these feature gates and API versions for a `with` block."""
        before = {each: each.command for each in (self.apiserver, self.scheduler)}
        enabled = f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"
        served = f"--runtime-config={','.join(f'{version}=true' for version in versions)}"
        self.apiserver.command = [*self.apiserver.command, enabled, served]
        self.scheduler.command = [*self.scheduler.command, enabled]
        try:
            for component in before:
                component.restart()
            yield
        finally:
            for component, command in before.items():
                component.command = command
                component.restart()

    def process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], ready: Callable[[], bool]
    ) -> Component:
        """Return another program beside the control plane, which ends with the cluster at the latest."""
        return Component(name, command, self.logs / f"{name}.log", ready, self._guard, environment)

    def create_namespace(self, name: str) -> None:
        """Create a namespace and wait until pods can be created in it; an earlier one may still be in deletion."""
        self.wait_for(f"end of the deletion of {name}", lambda: self._created_namespace(name))
        self.wait_for(f"the service account of {name}", lambda: self._has_service_account(name))

    def _created_namespace(self, name: str) -> bool:
        try:
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        except RequestFailed as error:
            if error.status == 409 and "object is being deleted" in error.body:
                return False
            raise
        return True

    def audit(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """Read the audit log from byte `since`, oldest entries first."""
        with self._files.audit_log.open("rb") as log:
            log.seek(since)
            for line in log:
                if line.endswith(b"\n"):
                    yield audit_entry(line)

    def audit_lines(self, since: int) -> tuple[list[bytes], int]:
        """Return the complete lines of the audit log from byte `since`, and the byte after them."""
        with self._files.audit_log.open("rb") as log:
            log.seek(since)
            text = log.read()
        end = text.rfind(b"\n") + 1
        return text[:end].splitlines(), since + end

    def audit_size(self) -> int:
        """Return the size of the audit log; pass it to `audit` as `since` to read only later entries."""
        return self._files.audit_log.stat().st_size

    @staticmethod
    def wait_for(what: str, condition: Callable[[], Any], timeout: float = 60, period: float = 0.05) -> Any:
        """Wait until `condition` returns something true, and return that."""
        deadline = time.monotonic() + timeout
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} after {timeout:g} s")
            time.sleep(period)
        return result

    def _prepare(self) -> None:
        """Choose ports, write the configuration files and create the components."""
        self._ports = Ports(*free_ports(5))
        self._identities.clear()
        self.admin = self.user("e2e-admin", "system:masters")
        self.api = Rest(self.admin)
        self.commands = Commands(self.directory, self.admin, self.binaries)
        private, public = signing_keys(self.directory / "pki")
        self._files = Files(
            self.directory,
            self._authority.pair,
            self._authority.server("serving", self._address),
            private,
            public,
            self.user("system:kube-controller-manager").kubeconfig,
            self.user("system:kube-scheduler").kubeconfig,
        )
        self._files.audit_policy.write_text(json.dumps(arguments.audit_policy(self._audit_bodies)))
        self._files.egress.write_text(json.dumps(arguments.egress(self._files.services)))
        self._configure_scheduler(self._scheduler_configuration)
        self._create_components()

    def _create_components(self) -> None:
        ports, programs, files = self._ports, self.binaries, self._files
        trust = self.admin.ssl_context()

        def healthy(port: int, path: str, text: str = "") -> Callable[[], bool]:
            return lambda: is_healthy(f"https://127.0.0.1:{port}/{path}", trust, text)

        def component(name: str, command: list[str], ready: Callable[[], bool]) -> Component:
            return Component(name, command, self.logs / f"{name}.log", ready, self._guard)

        self.etcd = component(
            "etcd",
            arguments.etcd(programs, ports, files),
            lambda: is_healthy(f"http://127.0.0.1:{ports.etcd}/health"),
        )
        self.apiserver = component(
            "kube-apiserver",
            arguments.apiserver(programs, ports, files, self._address),
            healthy(ports.apiserver, "readyz"),
        )
        self.controller_manager = component(
            "kube-controller-manager",
            arguments.controller_manager(programs, ports, files, self._node_lifecycle),
            # It reports healthy before any controller runs, and then lists the controllers as they start.
            healthy(ports.controller_manager, "healthz?verbose", "serviceaccount-controller ok"),
        )
        self.scheduler = component(
            "kube-scheduler", arguments.scheduler(programs, ports, files), healthy(ports.scheduler, "readyz")
        )

    def _start_components(self) -> None:
        self.etcd.start()
        self.apiserver.start()
        # These two need the API server but not each other.
        for component in (self.controller_manager, self.scheduler):
            component.spawn()
        for component in (self.controller_manager, self.scheduler):
            component.wait()

    def _kill_components(self) -> None:
        for component in reversed(self.components):
            component.kill()

    def _configure_scheduler(self, overrides: Mapping[str, Any]) -> None:
        document = arguments.scheduler_configuration(self._files.scheduler_kubeconfig, overrides)
        self._files.scheduler_configuration.write_text(json.dumps(document, indent=2))

    def _has_service_account(self, namespace: str) -> bool:
        with contextlib.suppress(RequestFailed):
            return bool(self.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))
        return False


def free_ports(count: int) -> list[int]:
    """Return different free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _file_name(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", "-".join(parts))
