"""One scheduler replica: watches, leader election and the HTTP port.

Every replica watches the cluster, so that a new leader can start immediately. Only the leader is Ready
and writes. All state is rebuilt from Kubernetes objects at every start.
"""

import asyncio
import gc
import os
import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from gpufleet.errors import KubernetesUnavailable, SettingsError
from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    GPU_QUEUES,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NATIVE_POD_GROUPS,
    NODES,
    OLDER_LOCAL_QUEUES,
    OLDER_NATIVE_POD_GROUPS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ElectionTimings,
    KubeClient,
    LeaderElection,
    Reflector,
    Selection,
)
from gpufleet.kubernetes.certificates.store import serving_context
from gpufleet.kubernetes.client.client import burst_of
from gpufleet.kubernetes.client.connection import connection_from_settings
from gpufleet.kubernetes.client.errors import Forbidden, KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.leases import LABELS
from gpufleet.runtime.background import Background
from gpufleet.runtime.listening import address_of, bind, is_loopback
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.settings import KubernetesSettings, SchedulerSettings, Settings
from gpufleet.scheduler.delivery.mode import Delivery
from gpufleet.scheduler.extender.certificates import ExtenderCertificates
from gpufleet.scheduler.extender.verbs import Extender
from gpufleet.scheduler.kubernetes_api import KubernetesApi
from gpufleet.scheduler.scheduler import Scheduler, Waits
from gpufleet.scheduler.standalone import Standalone
from gpufleet.scheduler.watched_pods import WATCHED_PODS

_log = get_logger("scheduler")

ELECTION = "gpufleet-scheduler"
"""The name of the Lease for leader election."""

_OURS = ",".join(f"{key}={value}" for key, value in LABELS.items())
"""Selects the templates that the scheduler keeps."""

STALE = 60.0
"""Seconds without an event or bookmark from a watch after which this replica is not Ready."""


class Replica:
    """One scheduler process among several, of which one leads."""

    def __init__(
        self,
        client: KubeClient,
        settings: SchedulerSettings,
        namespace: str,
        identity: str,
        timings: ElectionTimings = ElectionTimings(),  # noqa: B008  (frozen)
        *,
        freeze: bool = False,
        waits: Waits = Waits(),  # noqa: B008  (frozen)
    ) -> None:
        """Create the replica; `freeze` hides what was listed first from the garbage collector, which then pauses less."""
        self._settings = settings
        self._freeze = freeze
        self.election = LeaderElection(client, namespace, ELECTION, identity, timings)
        self.scheduler = Scheduler(
            KubernetesApi(client, namespace, identity),
            settings,
            namespace,
            leading=lambda: self.election.leading,
            timing=client.timing,
            waits=waits,
        )
        self._nodes = Reflector(client, NODES)
        self._reports = Reflector(client, GPU_NODE_STATUSES)
        self._leases = Reflector(client, LEASES, Selection(namespace=namespace))
        self._claims = Reflector(client, GPU_CLAIMS)
        self._groups = Reflector(client, POD_GROUPS, optional=True)
        self._native_groups = Reflector(
            client, NATIVE_POD_GROUPS, optional=True, older=OLDER_NATIVE_POD_GROUPS
        )
        self._budgets = Reflector(client, POD_DISRUPTION_BUDGETS, optional=True)
        self._queues = Reflector(client, GPU_QUEUES, optional=True)
        self._namespaces = Reflector(client, NAMESPACES, optional=True)
        self._local_queues = Reflector(client, LOCAL_QUEUES, optional=True, older=OLDER_LOCAL_QUEUES)
        self._pods = Reflector(client, WATCHED_PODS)
        self._slices = Reflector(client, RESOURCE_SLICES)
        self._resource_claims = Reflector(client, RESOURCE_CLAIMS)
        self._templates = Reflector(client, RESOURCE_CLAIM_TEMPLATES, Selection(labels=_OURS))
        self._client = client
        self.delivery = Delivery(
            client, self.scheduler.ledger, settings.delivery, self._templates, self.scheduler.metrics
        )
        self._required: tuple[Reflector[Any], ...] = (
            self._nodes,
            self._reports,
            self._leases,
            self._claims,
            self._pods,
        )
        self._synced = False
        self._leading = False
        scheduler = self.scheduler
        # Leases before pods: a pod is never seen without the GPUs it holds.
        self._leases.subscribe(scheduler.watch_events.on_leases)
        self._nodes.subscribe(scheduler.watch_events.on_nodes)
        self._reports.subscribe(scheduler.watch_events.on_reports)
        self._slices.subscribe(scheduler.watch_events.on_slices)
        self._resource_claims.subscribe(scheduler.watch_events.on_resource_claims)
        self._claims.subscribe(scheduler.watch_events.on_claims)
        self._groups.subscribe(scheduler.watch_events.on_groups)
        self._native_groups.subscribe(scheduler.watch_events.on_groups)
        self._budgets.subscribe(scheduler.watch_events.on_budgets)
        self._pods.subscribe(scheduler.watch_events.on_pods)
        self._namespaces.subscribe(scheduler.queue_events.on_namespaces)
        self._local_queues.subscribe(scheduler.queue_events.on_local_queues)
        self._queues.subscribe(scheduler.queue_events.on_queues)
        self._claims.subscribe(self.delivery.on_claims)
        self._pods.subscribe(self.delivery.on_pods)

    def unready(self) -> str:
        """Return why this replica can't serve, or an empty string."""
        if not self._synced:
            return "still listing the cluster"
        if not self._leading or not self.election.leading:
            leader = self.election.leader
            return f"not the leader; {leader} is" if leader else "not the leader; there is none"
        stale = [each.resource.kind for each in self._required if each.state.lag > STALE]
        return f"no watch events of {', '.join(stale)} for {STALE:g} s" if stale else ""

    def extender(self) -> Extender:
        """Return the extender of this replica."""
        settings = self._settings
        return Extender(self.scheduler, settings.name, self.unready)

    async def run(self) -> None:
        """Watch the cluster, take part in the election and lead, until cancelled."""
        self.delivery.served = await serves_resource_claims(self._client)
        if self.delivery.served:
            # Devices of others are known before the first GPU is given out.
            self._required = (*self._required, self._slices, self._resource_claims)
            if self._settings.delivery != "extender":
                self._required = (*self._required, self._templates)
        elif self._settings.delivery == "dra":
            raise SettingsError(
                "scheduler.delivery is dra, but the API server has no ResourceClaims (resource.k8s.io/v1), "
                "or this process may not read them"
            )
        async with asyncio.TaskGroup() as group:
            of_queues = (self._namespaces, self._local_queues, self._queues)
            optional = (self._groups, self._native_groups, self._budgets, *of_queues)
            for reflector in (*self._required, *optional):
                group.create_task(reflector.run())
            for reflector in self._required:
                await reflector.synced()
            for each in of_queues:
                # Limits apply from the start, if the server has the kinds and this process may read them.
                while not (each.state.synced or each.state.error):
                    await self._client.timing.sleep(0.05)
            self.scheduler.ledger.pods_listed()
            if self._freeze:
                gc.collect()
                gc.freeze()
            self._synced = True
            _log.info("cluster_listed", nodes=len(self._nodes.cache), pods=len(self._pods.cache))
            group.create_task(self.election.run(self._lead))

    async def _lead(self) -> None:
        self._leading = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.scheduler.lead())
                group.create_task(self.delivery.run())
                if self._settings.standalone:
                    group.create_task(Standalone(self.scheduler, self._settings.name).run())
        finally:
            self._leading = False


async def serves_resource_claims(client: KubeClient) -> bool:
    """Return whether the server has ResourceClaims (resource.k8s.io/v1) and this process may read them."""
    warnings = RepeatedWarnings(_log, client.timing.monotonic)
    while True:
        try:
            await client.page(RESOURCE_CLAIMS, limit=1)
            await client.page(RESOURCE_SLICES, limit=1)
            return True
        except ObjectNotFound:
            return False
        except Forbidden as error:
            _log.warning("resource_claims_not_readable", error=str(error))
            return False
        except (KubernetesUnavailable, KubernetesRefused) as error:
            warnings.warn("", "server_not_reached", error=str(error))
            await client.timing.sleep(1.0)


async def run_scheduler(settings: Settings, on_started: Callable[[str], None]) -> None:
    """Run a replica and its HTTP ports until cancelled; `on_started` gets the URL."""
    scheduler, kubernetes = settings[SchedulerSettings], settings[KubernetesSettings]
    if not scheduler.standalone and not scheduler.tls_secret and not is_loopback(scheduler.host):
        raise SettingsError(
            f"the extender would bind pods for anybody who reaches {scheduler.host}: set scheduler.tls_secret, "
            "or --host 127.0.0.1 if kube-scheduler runs beside it"
        )
    async with AsyncExitStack() as closing:
        listening = closing.enter_context(bind(scheduler.host, scheduler.port))
        probes = scheduler.metrics_port and closing.enter_context(
            bind(scheduler.host, scheduler.metrics_port)
        )
        client = await closing.enter_async_context(scheduler_client(scheduler, kubernetes))
        background = await closing.enter_async_context(Background())
        tls = None if scheduler.standalone else await _tls(client, settings, background)
        replica = Replica(client, scheduler, kubernetes.lease_namespace, _identity(), freeze=True)
        work = asyncio.ensure_future(replica.run())
        extender = replica.extender()
        try:
            async with AsyncExitStack() as serving:
                if probes:
                    await serving.enter_async_context(extender.probes().serving(probes))
                # In stand-alone mode there is no kube-scheduler that would call the verbs.
                port = extender.probes() if scheduler.standalone else extender.listener()
                await serving.enter_async_context(port.serving(listening, tls=tls))
                on_started(address_of(listening, "https" if tls else "http"))
                # Not `await work`: when stopped, verbs in flight finish before the replica is cancelled.
                await asyncio.wait((work,))
        finally:
            work.cancel()
            await asyncio.wait((work,))
        await work


async def _tls(client: KubeClient, settings: Settings, background: Background) -> ssl.SSLContext | None:
    """Return the TLS context of the verbs, whose certificate is renewed in the background, or None."""
    scheduler = settings[SchedulerSettings]
    if not scheduler.tls_secret:
        return None
    context = serving_context(client_certificates=True)
    namespace = settings[KubernetesSettings].lease_namespace
    certificates = ExtenderCertificates(client, scheduler, namespace, context)
    await certificates.refresh()
    background.start("certificates", certificates.run)
    return context


def scheduler_client(scheduler: SchedulerSettings, kubernetes: KubernetesSettings) -> KubeClient:
    """Return a Kubernetes client with the rate limits of the scheduler."""
    return KubeClient(
        connection_from_settings(kubernetes),
        requests_per_second=scheduler.requests_per_second,
        burst=burst_of(scheduler.requests_per_second),
        field_manager="gpufleet-scheduler",
        max_cache_bytes=kubernetes.max_cache_bytes,
    )


def _identity() -> str:
    """Return a name for this process that no other replica has."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"
