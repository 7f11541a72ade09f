"""One replica of the repair controller: watches, leader election and the HTTP port."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gpufleet.kubernetes import ElectionTimings, KubeClient, LeaderElection
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairStatus
from gpufleet.repair.alerts import Alerts
from gpufleet.repair.cluster_state import ClusterState
from gpufleet.repair.controller import Controller
from gpufleet.repair.finding_alerts import FindingAlerts, findings_of
from gpufleet.repair.jobs import load_templates
from gpufleet.repair.straggler_evictions import StragglerEvictions
from gpufleet.repair.views import Policy, RepairRules
from gpufleet.runtime.http_listener import HttpListener
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import AlertSettings, KubernetesSettings, RepairSettings, Settings

ELECTION = "gpufleet-repair"
"""The name of the Lease for leader election."""
_MAX_QUEUED = 1000


def rules_from(settings: RepairSettings, hooks: frozenset[str]) -> RepairRules:
    """Return the rules of the settings."""
    return RepairRules(
        policy=Policy[settings.policy.upper()],
        taint_gpu_faults=settings.taint_gpu_faults,
        settle=settings.settle,
        proofs=settings.proofs,
        max_attempts=settings.max_attempts,
        max_grace=settings.max_grace,
        drain_timeout=settings.drain_timeout,
        repair_timeout=settings.repair_timeout,
        flap_limit=settings.flap_limit,
        max_share=settings.max_share,
        max_per_hour=settings.max_per_hour,
        hooks=hooks,
    )


class RepairReplica:
    """One process among several, of which one leads."""

    def __init__(
        self,
        client: KubeClient,
        settings: RepairSettings,
        alerts: AlertSettings,
        namespace: str,
        identity: str,
        timings: ElectionTimings = ElectionTimings(),  # noqa: B008  (frozen)
    ) -> None:
        templates = load_templates(settings.templates)
        self.state = ClusterState(client, namespace)
        self.election = LeaderElection(client, namespace, ELECTION, identity, timings)
        self._changes: asyncio.Queue[tuple[GpuRepair, RepairStatus]] = asyncio.Queue(_MAX_QUEUED)
        self.controller = Controller(
            client,
            self.state,
            rules_from(settings, frozenset(templates)),
            namespace,
            templates,
            identity,
            self._on_change,
        )
        self._alerts = Alerts(alerts, lambda: list(self.state.repairs.cache))
        self._finding_alerts = FindingAlerts(
            alerts,
            lambda: findings_of(list(self.state.reports.cache)),
            lambda: list(self.state.repairs.cache),
        )
        self._stragglers = StragglerEvictions(
            settings, self.state, client.timing.now, self.controller.evict_straggler
        )
        self._synced = False
        self.registry = CollectorRegistry(auto_describe=False)
        self._phases = Gauge(
            "gpufleet_repair_nodes", "Nodes by phase of their repair.", ["phase"], registry=self.registry
        )
        self._steps = Counter(
            "gpufleet_repair_steps", "Steps of repairs by phase.", ["phase"], registry=self.registry
        )

    def unready(self) -> str:
        """Return why this replica does nothing, or an empty string."""
        if not self._synced:
            return "still listing the cluster"
        return (
            ""
            if self.election.leading
            else f"not the leader; the leader is {self.election.leader or 'not known'}"
        )

    def metrics(self) -> bytes:
        """Return the metrics as text."""
        self._phases.clear()
        for repair in self.state.repairs.cache:
            self._phases.labels(repair.status.phase).inc()
        return generate_latest(self.registry)

    async def run(self) -> None:
        """Watch, take part in the election and lead, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (*self.state.required(), *self.state.optional()):
                group.create_task(reflector.run())
            for reflector in self.state.required():
                await reflector.synced()
            self._synced = True
            group.create_task(self.election.run(self._lead))

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controller.run())
            group.create_task(self.controller.run_conditions())
            group.create_task(self._tell())
            group.create_task(self._alerts.run())
            group.create_task(self._finding_alerts.run())
            group.create_task(self._stragglers.run())

    def _on_change(self, repair: GpuRepair, before: RepairStatus) -> None:
        self._steps.labels(repair.status.phase).inc()
        if not self._changes.full():
            self._changes.put_nowait((repair, before))

    async def _tell(self) -> None:
        """Record events and send alerts, without delaying repairs."""
        while True:
            repair, before = await self._changes.get()
            if repair.status.phase != before.phase:
                await self.controller.record_event(repair, before)
                await self._alerts.send(repair, before)


async def run_repair(settings: Settings, on_started: Callable[[str], None]) -> None:
    """Run a replica and its HTTP port until cancelled; `on_started` gets the URL."""
    own, kubernetes = settings[RepairSettings], settings[KubernetesSettings]
    async with AsyncExitStack() as closing:
        listening = closing.enter_context(bind(own.host, own.port))
        client = await closing.enter_async_context(KubeClient.from_settings(kubernetes))
        replica = RepairReplica(client, own, settings[AlertSettings], kubernetes.lease_namespace, _identity())
        port = HttpListener(metrics=replica.metrics, ready=replica.unready)
        await closing.enter_async_context(port.serving(listening))
        on_started(address_of(listening))
        await replica.run()


def _identity() -> str:
    """Return a name for this process that no other replica has."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"
