"""kube-scheduler's HTTP extender: filter, prioritize, bind and preempt.

Only the leader answers verbs. Other replicas answer 503, after which kube-scheduler tries again.

A call names a pod and nodes. Only the UID and the node names are taken from it: priority, claim, scheduler
name and node constraints are those of the watched objects, so a forged body changes nothing. A UID that the
watch has not delivered is refused, and kube-scheduler tries again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gpufleet.errors import InvalidRequest, OperationRefused
from gpufleet.kubernetes.objects import Pod
from gpufleet.runtime.http_listener import Handler, HttpListener, Probe
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.extender import wire
from gpufleet.scheduler.filtering import AnyNode, Unschedulable
from gpufleet.scheduler.scheduler import Scheduler

_log = get_logger("scheduler")

_WHOLE_NODES = (
    "kube-scheduler sent whole nodes instead of names: set nodeCacheCapable: true for this extender"
)

WATCH_LAG = 0.25
"""Seconds to wait for the watch to deliver a pod that kube-scheduler already knows. It waits meanwhile."""
_POLL = 0.01


MAX_BODY_BYTES = 64 << 20
"""Largest request accepted from kube-scheduler; with 5,000 nodes one has a few MiB, as only their names are sent."""


class Extender:
    """Answers kube-scheduler's verbs for pods whose `schedulerName` is `name`."""

    def __init__(self, scheduler: Scheduler, name: str, ready: Probe) -> None:
        """`ready` returns why this replica can't serve, or an empty string."""
        self._scheduler = scheduler
        self._name = name
        self._ready = ready

    def probes(self) -> HttpListener:
        """Return an HTTP port with probes and metrics only."""
        return HttpListener(metrics=self._metrics, ready=self._ready)

    def listener(self) -> HttpListener:
        """Return the HTTP port with verbs, probes and metrics."""
        verbs = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }
        return HttpListener(
            metrics=self._metrics,
            ready=self._ready,
            posts={path: self._handler(path, verb) for path, verb in verbs.items()},
            max_body=MAX_BODY_BYTES,
        )

    def _metrics(self) -> bytes:
        self._scheduler.refresh_metrics()
        return self._scheduler.metrics.render()

    def _handler(self, path: str, verb: Callable[[bytes], Awaitable[bytes]]) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            body = await request.read()
            if problem := self._ready():
                return web.Response(status=503, text=problem)
            try:
                return web.Response(body=await verb(body), content_type="application/json")
            except InvalidRequest as error:
                return web.Response(status=400, text=str(error))
            except OperationRefused as error:
                return web.Response(status=503, text=str(error))
            except Exception:  # noqa: BLE001  (kube-scheduler logs this text as the reason)
                _log.exception("verb_failed", verb=path)
                return web.Response(status=500, text="the scheduler failed to answer; see its log")

        return answer

    async def _filter(self, body: bytes) -> bytes:
        args = wire.decode(wire.ExtenderArgs, body)
        if args.node_names is None and args.nodes is not None:
            # It would ignore the names in the answer and report every pod as unschedulable, without a reason.
            return wire.encode(wire.FilterResult(error=_WHOLE_NODES))
        names = args.names
        try:
            pod = await self._pod(args.pod.metadata.uid, lambda pod: not pod.spec.scheduling_gates)
            if pod.spec.node_name in names:
                # It was bound directly after kube-scheduler took it from its queue.
                return wire.encode(wire.FilterResult(node_names=[pod.spec.node_name]))
            _check_pending(pod)
        except OperationRefused as error:
            return wire.encode(wire.FilterResult(error=str(error)))
        choice = self._scheduler.filter(pod, names)
        if isinstance(choice, AnyNode):
            return wire.encode(wire.FilterResult(node_names=names))
        if isinstance(choice, Unschedulable):
            unresolvable = {name: choice.reasons[name] for name in choice.unresolvable}
            failed = {name: why for name, why in choice.reasons.items() if name not in unresolvable}
            return wire.encode(wire.FilterResult(failed=failed, unresolvable=unresolvable))
        if problem := self._misplaced(pod, choice.node):
            self._scheduler.ledger.release_hold(pod.metadata.uid)
            return wire.encode(wire.FilterResult(error=problem))
        return wire.encode(wire.FilterResult(node_names=[choice.node]))

    async def _prioritize(self, body: bytes) -> bytes:
        args = wire.decode(wire.ExtenderArgs, body)
        scores = self._scheduler.prioritize(await self._pending_pod(args.pod), args.names)
        return wire.encode([wire.HostPriority(name, score) for name, score in scores.items()])

    async def _bind(self, body: bytes) -> bytes:
        args = wire.decode(wire.BindingArgs, body)
        try:
            pod = await self._pod(args.uid)
        except OperationRefused as error:
            return wire.encode(wire.BindingResult(str(error)))
        meta = pod.metadata
        # A pod that is bound already is a success if it has this node, whatever has changed since.
        problem = "" if pod.spec.node_name else self._misplaced(pod, args.node)
        problem = problem or await self._scheduler.bind(meta.namespace, meta.name, meta.uid, args.node)
        return wire.encode(wire.BindingResult(problem))

    async def _preempt(self, body: bytes) -> bytes:
        args = wire.decode(wire.PreemptionArgs, body)
        by_node = args.by_node()
        pod = await self._pending_pod(args.pod)
        victims = self._scheduler.victims(pod, {node: uids for node, (uids, _) in by_node.items()})
        return wire.encode(
            wire.PreemptionResult(
                {
                    node: wire.MetaVictims([wire.MetaPod(uid) for uid in uids], by_node[node][1])
                    for node, uids in victims.items()
                }
            )
        )

    async def _pending_pod(self, sent: Pod) -> Pod:
        """Return the watched pod if it waits for a node; raise OperationRefused otherwise."""
        pod = await self._pod(sent.metadata.uid, lambda pod: not pod.spec.scheduling_gates)
        _check_pending(pod)
        return pod

    async def _pod(self, uid: str, current: Callable[[Pod], bool] = lambda pod: True) -> Pod:
        """Return the watched pod, after a short wait if it is unknown or not `current`; raise OperationRefused."""
        pods = self._scheduler.ledger.pods
        pod = pods.get(uid)
        try:
            async with asyncio.timeout(WATCH_LAG):
                while pod is None or not current(pod):
                    await asyncio.sleep(_POLL)
                    pod = pods.get(uid)
        except TimeoutError:
            pass
        if pod is None:
            raise OperationRefused(f"pod with UID {uid} has not reached the scheduler yet; try again")
        if pod.spec.scheduler_name != self._name:
            raise OperationRefused(
                f"pod {_name(pod)} has schedulerName {pod.spec.scheduler_name}; this scheduler serves {self._name}"
            )
        return pod

    def _misplaced(self, pod: Pod, node: str) -> str:
        """Return why the node does not suit the pod's own constraints, or an empty string."""
        if self._scheduler.ledger.meets_constraints(node, pod):
            return ""
        return (
            f"pod {_name(pod)} does not fit on node {node}: see its node selector, affinity and tolerations"
        )


def _check_pending(pod: Pod) -> None:
    """Raise OperationRefused if the pod does not wait for a node."""
    problem = ""
    if pod.spec.node_name:
        problem = f"is already bound to {pod.spec.node_name}"
    elif pod.finished or pod.metadata.deletion_timestamp is not None:
        problem = "has ended or is being deleted"
    elif pod.spec.scheduling_gates:
        problem = "has scheduling gates"
    if problem:
        raise OperationRefused(f"pod {_name(pod)} {problem}")


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
