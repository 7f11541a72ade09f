"""Reconcile the nodes that have a fault or a repair in progress.

For each node, the next status is decided and written first, at the version that was read; then follows what it asks for.
A failed or conflicting call is tried again in the next round. A round follows every change of the cluster, and every few
seconds, because some steps wait for a time.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from msgspec import structs

from gpufleet.errors import GpufleetError, KubernetesUnavailable
from gpufleet.kubernetes import GPU_NODE_STATUSES, GPU_REPAIRS, PODS, EventRecorder, KubeClient
from gpufleet.kubernetes.annotations import EVICT_AT, RELEASE_DRIVER
from gpufleet.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    KubernetesRefused,
    ObjectNotFound,
    TooManyRequests,
)
from gpufleet.kubernetes.client.patch import merge
from gpufleet.kubernetes.client.resources import JOBS
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairSpec, RepairStatus
from gpufleet.kubernetes.objects import ObjectMeta, ObjectReference, OwnerReference
from gpufleet.repair.actions import (
    Action,
    Announce,
    CreateJob,
    Evict,
    ReleaseDriver,
    RemoveTaint,
    SetTaint,
    actions,
)
from gpufleet.repair.cluster_state import NO_PODS, ClusterState, PodIndex
from gpufleet.repair.decide import next_status
from gpufleet.repair.device_taints import DeviceTaints
from gpufleet.repair.jobs import render
from gpufleet.repair.node_marks import TAINT, conditions, remove_taint, set_conditions, set_taint
from gpufleet.repair.views import NodeView, PodView, Policy, RepairRules
from gpufleet.runtime.logs import RepeatedWarnings, get_audit_logger, get_logger

TICK = 5.0
"""Seconds between rounds without a change."""
SEEN_AFTER = 30.0
"""Seconds after which the watch must have shown that an evicted pod ends; it is evicted again otherwise."""
DEBOUNCE = 0.05
"""Seconds to wait for further changes."""

Listener = Callable[[GpuRepair, RepairStatus], None]
"""Takes a repair and its status before."""

_log = get_logger("repair")


class Controller:
    """Drives the repairs of one cluster."""

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        rules: RepairRules,
        namespace: str,
        templates: dict[str, dict[str, object]],
        instance: str = "repair",
        on_change: Listener = lambda repair, before: None,
    ) -> None:
        self.rounds = 0
        self._client = client
        self._state = state
        self._rules = rules
        self._namespace = namespace
        self._templates = templates
        self._events = EventRecorder(client, "gpufleet-repair", instance)
        self._on_change = on_change
        self._warnings = RepeatedWarnings(_log, client.timing.monotonic)
        self._audit_log = get_audit_logger()
        self._evicted: dict[str, float] = {}
        """When pods were evicted that the watch may still show as running."""
        self._device_taints = DeviceTaints(client, state, self._audit)
        self._wake = asyncio.Event()
        self._node_changed = asyncio.Event()
        for reflector in (*state.required(), *state.optional()):
            reflector.subscribe(lambda _changes: self._wake.set())
        for reflector in (state.nodes, state.reports):
            reflector.subscribe(lambda _changes: self._node_changed.set())

    async def run(self) -> None:
        """Reconcile until cancelled."""
        while True:
            self._wake.clear()
            await self.reconcile()
            await _wait(self._wake, TICK)
            await asyncio.sleep(DEBOUNCE)

    async def run_conditions(self) -> None:
        """Keep the conditions of all nodes with GPUs current, until cancelled; apart from repairs, which come first."""
        while True:
            self._node_changed.clear()
            for report in list(self._state.reports.cache):
                await self._set_conditions(report.metadata.name)
            await _wait(self._node_changed, 60.0)
            await asyncio.sleep(DEBOUNCE)

    async def reconcile(self) -> None:
        """Do one round over all nodes that need attention."""
        names = self._state.troubled()
        for name in names:
            if not self._state.is_out_of_service(name):
                await self._try_node(
                    name, NO_PODS
                )  # the taint comes first, and indexing many pods takes time
        await self._device_taints.reconcile()
        pods = self._state.pod_index() if names else NO_PODS
        for name in names:
            await self._try_node(name, pods)
        await self._device_taints.reconcile()
        self.rounds += 1

    async def _try_node(self, name: str, pods: PodIndex) -> None:
        """Do the next step of one node; what fails is tried again in the next round."""
        try:
            await self._reconcile_node(name, pods)
        except Conflict as error:
            self._state.forget(name)
            _log.debug("repair_conflict", node=name, error=str(error))
        except (KubernetesUnavailable, KubernetesRefused) as error:
            self._warnings.warn(name, "repair_step_failed", node=name, error=str(error))

    async def _reconcile_node(self, name: str, pods: PodIndex) -> None:
        repair = self._state.repair(name)
        status = repair.status if repair else RepairStatus()
        node = self._state.node_view(name, status, pods, self._rules)
        if node is None:
            return
        now = self._client.timing.now().timestamp()
        new = next_status(status, node, self._state.cluster_view(name), self._rules, now)
        if new != status:
            repair = await self._write(name, repair, new)
            self._record(repair, status)
            node = self._state.node_view(name, new, pods, self._rules) or node
        for action in actions(new, node, self._rules, now):
            await self._perform(action, node)

    async def _write(self, name: str, repair: GpuRepair | None, status: RepairStatus) -> GpuRepair:
        """Write the status; raise Conflict if another process has written it since it was read."""
        if repair is None:
            repair = await self._create(name)
        written = await self._client.replace(
            GPU_REPAIRS, structs.replace(repair, status=status), subresource="status"
        )
        self._state.remember(written)
        return written

    async def _create(self, name: str) -> GpuRepair:
        node = self._state.nodes.cache.get(name)
        owner = OwnerReference(
            api_version="v1", kind="Node", name=name, uid=node.metadata.uid if node else ""
        )
        new = GpuRepair(
            metadata=ObjectMeta(name=name, owner_references=(owner,)), spec=RepairSpec(node_name=name)
        )
        try:
            return await self._client.create(GPU_REPAIRS, new)
        except AlreadyExists:
            return await self._client.get(GPU_REPAIRS, name)

    def _record(self, repair: GpuRepair, before: RepairStatus) -> None:
        """Log what was decided, and tell the listener."""
        status = repair.status
        if status.phase != before.phase or status.job != before.job:
            _log.info(
                "repair_step",
                node=repair.metadata.name,
                phase=status.phase,
                before=before.phase,
                message=status.message,
                cause=status.cause or before.cause,
            )
            cause = status.cause or before.cause
            self._audit(
                f"repair {status.phase}", f"nodes/{repair.metadata.name}", f"{status.message} ({cause})"
            )
            self._on_change(repair, before)

    async def record_event(self, repair: GpuRepair, before: RepairStatus) -> None:
        """Record a change of phase as an event of the Node."""
        status, name = repair.status, repair.metadata.name
        node = self._state.nodes.cache.get(name)
        about = ObjectReference(
            api_version="v1", kind="Node", name=name, uid=node.metadata.uid if node else ""
        )
        type: Literal["Normal", "Warning"] = "Normal" if status.phase == "Healthy" else "Warning"
        note = f"{status.message} (cause: {status.cause or before.cause})"
        await self._events.record(about, f"GpuRepair{status.phase}", note, type=type, action="Repair")

    async def _perform(self, action: Action, node: NodeView) -> None:
        found = self._state.nodes.cache.get(node.name)
        match action:
            case SetTaint() if found is not None:
                await set_taint(self._client, found)
                self._audit("taint", f"nodes/{node.name}", TAINT.key)
            case RemoveTaint() if found is not None:
                await remove_taint(self._client, found)
                self._audit("remove taint", f"nodes/{node.name}", TAINT.key)
            case Announce(pod, at):
                await self._announce(pod, at)
                self._audit("announce eviction", f"pods/{pod.namespace}/{pod.name}", f"at {at}")
            case Evict(pod):
                await self._evict(pod, f"repair of node {node.name}")
            case ReleaseDriver(until):
                meta = {"annotations": {RELEASE_DRIVER: until}}
                await self._client.patch(GPU_NODE_STATUSES, node.name, merge({"metadata": meta}))
                self._audit("release driver", f"nodes/{node.name}", f"until {until}" if until else "over")
            case CreateJob(name, hook, gpus):
                await self._create_job(name, hook, node.name, gpus)

    async def _announce(self, pod: PodView, at: str) -> None:
        meta = {"uid": pod.uid, "annotations": {EVICT_AT: at}}
        try:
            await self._client.patch(PODS, pod.name, merge({"metadata": meta}), pod.namespace)
        except ObjectNotFound:
            return

    async def evict_straggler(self, pod: PodView, reason: str) -> None:
        """Evict a pod that asked for it, if the policy allows evictions."""
        if self._rules.policy >= Policy.DRAIN:
            await self._evict(pod, reason)

    async def _evict(self, pod: PodView, reason: str) -> None:
        """Evict the pod with the eviction API, which respects disruption budgets, preStop and grace periods."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        now = self._client.timing.monotonic()
        self._evicted = {uid: at for uid, at in self._evicted.items() if now - at < SEEN_AFTER}
        if pod.uid in self._evicted:
            return
        try:
            await self._client.write_json("POST", PODS.path(pod.namespace, pod.name, "eviction"), body)
            self._evicted[pod.uid] = now
        except (ObjectNotFound, Conflict):
            return
        except TooManyRequests as error:
            self._warnings.warn(pod.uid, "eviction_delayed", pod=pod.name, error=str(error))
            return
        _log.info(
            "pod_evicted",
            node=pod.node,
            namespace=pod.namespace,
            pod=pod.name,
            uid=pod.uid,
            reason=reason,
        )
        self._audit("evict", f"pods/{pod.namespace}/{pod.name}", reason)

    async def _create_job(self, name: str, hook: str, node: str, gpus: tuple[int, ...]) -> None:
        report = self._state.reports.cache.get(node)
        devices = report.status.devices if report else ()
        uuids = tuple(device.uuid for device in devices if device.uuid and (not gpus or device.id in gpus))
        manifest = render(self._templates[hook], name, self._namespace, node, uuids)
        try:
            await self._client.write_json("POST", JOBS.path(self._namespace), manifest)
        except AlreadyExists:
            return  # created before this process started, or not seen yet
        _log.info("repair_job_created", node=node, job=name, hook=hook)
        self._audit(f"create Job {hook}", f"jobs/{self._namespace}/{name}", f"repair of node {node}")

    def _audit(self, action: str, target: str, reason: str) -> None:
        """Write an event of the audit log, as the server does for what people change."""
        self._audit_log.info(
            "audit", who="gpufleet-repair", action=action, target=target, outcome="allowed", reason=reason
        )

    async def _set_conditions(self, name: str) -> None:
        node, report = self._state.nodes.cache.get(name), self._state.reports.cache.get(name)
        if node is None or report is None:
            return
        wanted = conditions(report.status.findings, node, self._client.timing.now().timestamp())
        if wanted is None:
            return
        try:
            await set_conditions(self._client, name, wanted)
        except GpufleetError as error:
            self._warnings.warn(f"condition/{name}", "conditions_not_written", node=name, error=str(error))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
