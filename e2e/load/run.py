"""The two runs of the load test: the same pods without and with claims."""

import asyncio
import base64
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from tests.scheduler.stage import device

from e2e.cluster import Cluster, Component
from e2e.cluster.cluster import free_ports
from e2e.cluster.rest import is_healthy
from e2e.fakenodes import status
from e2e.load.measures import Requests, cpu_seconds, requests_since, seconds_by_phase
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, GANG_SIZE
from gpufleet.kubernetes.client.connection import load_connection

CHART = Path(__file__).parents[2] / "charts" / "gpu-scheduler"
PODS = "/api/v1/namespaces/default/pods"
TLS_SECRET = "gpu-scheduler-scheduler-tls"
CLAIMS = "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims"
REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"
GPUS = 8
CONCURRENCY = 32
TIMEOUT = 600.0
Mode = Literal["direct", "asked", "standalone"]
"""Who binds pods: gpufleet, or only when kube-scheduler asks, or gpufleet without kube-scheduler."""


@dataclass
class Outcome:
    """The result of one run."""

    name: str
    bound: int = 0
    explained: int = 0
    double_allocated: int = 0
    seconds: float = 0.0
    statuses: float = 0.0
    """Seconds from the last binding until every claim shows its GPUs."""
    cpu: dict[str, float] = field(default_factory=dict)
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)
    requests: list[Requests] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Pods bound per second between the first lease or binding and the last binding."""
        return (self.bound - 1) / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the rate."""
        return {**asdict(self), "rate": self.rate}


class Load:
    """Creates nodes and pods and measures both runs."""

    def __init__(
        self, cluster: Cluster, nodes: int, pods: int, unfit: int, gpus: int = 1, gang: int = 1
    ) -> None:
        """`gpus` is the number of GPUs of a pod, `gang` the number of pods that must start together."""
        self.cluster, self.nodes, self.pods, self.unfit = cluster, nodes, pods, unfit
        self.gpus, self.gang = gpus, gang

    def prepare(self) -> None:
        """Create the CRDs, the nodes and their GpuNodeStatus objects."""
        began = time.monotonic()
        self.cluster.kubectl("apply", "-f", str(CHART / "crds"))
        for crd in ("gpuclaims.gpu.scheduling", "gpunodestatuses.gpu.scheduling"):
            self.cluster.kubectl("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=60s")
        self.cluster.scheduler.stop()
        self._do(lambda client: self._each(range(self.nodes), lambda at: self._add_node(client, at)))
        _print_step(f"{self.nodes} nodes of {GPUS} GPUs in {time.monotonic() - began:.0f} s")

    def without_claims(self) -> Outcome:
        """Measure plain kube-scheduler."""
        outcome = Outcome("without claims")
        self._create(self.pods, "plain", "default-scheduler", claims=False)
        components = {"kube-scheduler": self.cluster.scheduler}
        since = self.cluster.audit_size()
        self._measure(outcome, since, components, lambda: self._start_scheduler({}))
        self._clear()
        return outcome

    def with_claims(self, mode: Mode = "direct") -> Outcome:
        """Measure gpufleet scheduler with kube-scheduler as the chart configures it, or without it."""
        outcome = Outcome("with claims")
        rendered = self._rendered()
        port, metrics_port = free_ports(2)
        command = [sys.executable, "-m", "gpufleet", "scheduler"]
        command += ["--port", str(port), "--metrics-port", str(metrics_port)]
        command += ["--standalone"] if mode == "standalone" else ["--tls-secret", TLS_SECRET]
        ready = f"http://127.0.0.1:{metrics_port}/readyz"
        environment = {
            **self.cluster.commands.environment(),
            "KUBECONFIG": str(self._account(rendered)),
            "GPUFLEET_SCHEDULER_DIRECT_BINDING": str(mode == "direct").lower(),
        }
        extender = self.cluster.process("gpufleet scheduler", command, environment, lambda: is_healthy(ready))
        components, start = {"gpufleet scheduler": extender}, lambda: extender.start()
        if mode != "standalone":
            components["kube-scheduler"] = self.cluster.scheduler
            start = self._start_both(extender, rendered, port)
        self._create(self.pods, "claims", "gpu-scheduler", claims=True, count=self.gpus, gang=self.gang)
        self._create(self.unfit, "unfit", "gpu-scheduler", claims=True, count=2 * GPUS)
        try:
            self._measure(outcome, self.cluster.audit_size(), components, start)
            outcome.phases = seconds_by_phase(f"http://127.0.0.1:{metrics_port}/metrics")
            self._wait_for_statuses(outcome)
            outcome.double_allocated = self._count_double_allocated()
        finally:
            extender.stop()
        return outcome

    def _start_both(
        self, extender: Component, rendered: list[dict[str, Any]], port: int
    ) -> Callable[[], None]:
        """Return a function that starts kube-scheduler and the extender at the same time."""
        extender.start()  # makes the certificate that kube-scheduler needs
        configuration = _configuration(rendered, port, self._certificate())
        extender.stop()

        def start() -> None:
            extender.spawn()
            self._start_scheduler(configuration)

        return start

    def _measure(
        self, outcome: Outcome, since: int, components: dict[str, Component], start: Callable[[], None]
    ) -> None:
        began = time.monotonic()
        measured = {
            "kube-apiserver": self.cluster.apiserver,
            "etcd": self.cluster.etcd,
            "kube-controller-manager": self.cluster.controller_manager,
            **components,
        }
        running = [name for name, each in measured.items() if each.running]
        before = {name: cpu_seconds(measured[name].pid) if name in running else 0.0 for name in measured}
        bindings = _Bindings(self.cluster, since)
        start()
        self.cluster.wait_for(
            "pods to be bound", lambda: bindings.count() >= self.pods, timeout=TIMEOUT, period=0.5
        )
        outcome.bound, outcome.seconds = bindings.count(), bindings.seconds()
        outcome.cpu = {name: cpu_seconds(each.pid) - before[name] for name, each in measured.items()}
        outcome.requests = requests_since(self.cluster.audit(since))
        _print_step(
            f"{outcome.name}: {outcome.bound} pods bound, {outcome.rate:.0f}/s, {time.monotonic() - began:.0f} s"
        )

    def _start_scheduler(self, configuration: dict[str, Any]) -> None:
        self.cluster._configure_scheduler(configuration)
        self.cluster.scheduler.restart()

    def _rendered(self) -> list[dict[str, Any]]:
        text = self.cluster.helm("template", "gpu-scheduler", str(CHART))
        return [each for each in yaml.safe_load_all(text) if each]

    def _account(self, rendered: list[dict[str, Any]]) -> Path:
        """Create the scheduler's service account and roles, and return its kubeconfig."""
        for each in rendered:
            if each["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
                self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))
        return self.cluster.service_account("default", "gpu-scheduler-scheduler").kubeconfig

    def _certificate(self) -> Path:
        """Return a folder with the extender's certificate, as kube-scheduler's pod mounts it."""
        data = self.cluster.api.get(f"/api/v1/namespaces/default/secrets/{TLS_SECRET}")["data"]
        folder = self.cluster.directory / TLS_SECRET
        folder.mkdir(exist_ok=True)
        for name, value in data.items():
            (folder / name).write_bytes(base64.b64decode(value))
        return folder

    # Objects

    def _create(
        self, number: int, name: str, scheduler: str, *, claims: bool, count: int = 1, gang: int = 1
    ) -> None:
        async def one(client: KubeClient, at: int) -> None:
            pod = f"{name}-{at}"
            if claims:
                body = {
                    "apiVersion": "gpu.scheduling/v1",
                    "kind": "GpuClaim",
                    "metadata": {"name": pod, "annotations": {GANG_SIZE: str(gang)}},
                    "spec": {
                        "devices": {"count": count},
                        **({"gangRef": f"gang-{at // gang}"} if gang > 1 else {}),
                    },
                }
                await client.write_json("POST", CLAIMS, body)
            gates = [GANG_GATE] if gang > 1 else []  # as the webhook adds them
            await client.write_json("POST", PODS, _pod(pod, scheduler, pod if claims else "", gates))

        self._do(lambda client: self._each(range(number), lambda at: one(client, at)))

    def _clear(self) -> None:
        """Stop the scheduler and delete all pods."""
        self.cluster.scheduler.stop()
        self.cluster.kubectl(
            "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false", timeout=TIMEOUT
        )
        self.cluster.wait_for("no pods", lambda: not self._pods_left(), timeout=TIMEOUT, period=0.5)

    def _pods_left(self) -> int:
        return len(self.cluster.api.get(f"{PODS}?limit=1")["items"])

    def _wait_for_statuses(self, outcome: Outcome) -> None:
        ended, least = time.monotonic(), (self.pods, self.unfit)
        self.cluster.wait_for("claim statuses", lambda: self._shown() >= least, timeout=TIMEOUT, period=0.5)
        outcome.statuses = time.monotonic() - ended
        outcome.explained = self._shown()[1]

    def _shown(self) -> tuple[int, int]:
        """Count the claims that show their GPUs, and those that fit nowhere and have an explanation."""
        found = [each.get("status", {}) for each in self.cluster.api.get(CLAIMS)["items"]]
        explained = sum("nodes fit" in each.get("message", "") for each in found)
        return sum(each.get("phase") == "Bound" for each in found), explained

    def _count_double_allocated(self) -> int:
        """Count the GPUs in the annotations of more than one pod."""
        seen: dict[str, int] = {}
        for pod in self.cluster.api.get(PODS)["items"]:
            node, _, ids = pod["metadata"].get("annotations", {}).get(ALLOCATED, "").rpartition(":")
            for gpu in filter(None, ids.split(",")):
                seen[f"{node}:{gpu}"] = seen.get(f"{node}:{gpu}", 0) + 1
        return sum(number > 1 for number in seen.values())

    async def _add_node(self, client: KubeClient, at: int) -> None:
        name = f"node-{at}"
        address = f"10.{at // 65536}.{at // 256 % 256}.{at % 256}"
        await client.write_json("POST", "/api/v1/nodes", status.node(name, address, {}, {}, []))
        report = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuNodeStatus",
            "metadata": {"name": name},
            "spec": {"nodeName": name},
        }
        await client.write_json("POST", REPORTS, report)
        status_patch = {
            "status": {"devices": [device(gpu) for gpu in range(GPUS)], "total": GPUS, "free": GPUS}
        }
        await client.write_json(
            "PATCH", f"{REPORTS}/{name}/status", status_patch, "application/merge-patch+json"
        )

    async def _each(self, numbers: Iterable[int], action: Callable[[int], Awaitable[None]]) -> None:
        """Run `action` for all numbers, some at a time."""
        remaining = iter(numbers)

        async def work() -> None:
            for at in remaining:
                await action(at)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))

    def _do(self, work: Callable[[KubeClient], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            connection = load_connection(str(self.cluster.kubeconfig), "")
            async with KubeClient(connection, requests_per_second=5000, burst=5000) as client:
                await work(client)

        asyncio.run(run())


class _Bindings:
    """The Bindings in the audit log. Each line is read once: the processes under test need the CPU time."""

    def __init__(self, cluster: Cluster, since: int) -> None:
        self._cluster = cluster
        self._since = since
        self._bound: list[str] = []
        self._leased: list[str] = []

    def count(self) -> int:
        """Return the number of Bindings so far."""
        lines, self._since = self._cluster.audit_lines(self._since)
        for line in lines:
            if b'"verb":"create"' not in line or not (b'"binding"' in line or b'"name":"gpu-' in line):
                continue
            each = json.loads(line)
            if each.get("responseStatus", {}).get("code") == 201:
                found = self._bound if each["objectRef"].get("subresource") == "binding" else self._leased
                found.append(each["stageTimestamp"])
        return len(self._bound)

    def seconds(self) -> float:
        """Return the time from the first lease or Binding to the last Binding."""
        # Gangs get their leases before their first member is bound.
        first = min((*self._bound, *self._leased))
        return (_moment(max(self._bound)) - _moment(first)).total_seconds()


def _pod(name: str, scheduler: str, claim: str, gates: Sequence[str]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {CLAIM: claim} if claim else {}},
        "spec": {
            "schedulerName": scheduler,
            "schedulingGates": [{"name": gate} for gate in gates],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "trainer", "resources": {"requests": {"cpu": "1"}}}],
        },
    }


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _print_step(line: str) -> None:
    print(f"==> {line}", flush=True)


def _configuration(rendered: list[dict[str, Any]], port: int, certificate: Path) -> dict[str, Any]:
    """Return the kube-scheduler configuration of the chart, with the extender's address and certificate."""
    [found] = [
        each["data"]["config.yaml"]
        for each in rendered
        if each["kind"] == "ConfigMap" and "config.yaml" in each["data"]
    ]
    local = found.replace("/etc/kubernetes/extender", str(certificate))
    configuration: dict[str, Any] = yaml.safe_load(local)
    configuration["extenders"][0]["urlPrefix"] = f"https://127.0.0.1:{port}"
    return {key: value for key, value in configuration.items() if key not in ("leaderElection",)}
