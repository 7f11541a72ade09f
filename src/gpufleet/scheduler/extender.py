"""kube-scheduler's HTTP extender: filter, prioritize, bind and preempt.

Only the leader answers verbs. Other replicas answer 503, after which kube-scheduler tries again.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from gpufleet.errors import InvalidRequest
from gpufleet.runtime.http_listener import Handler, HttpListener, Probe
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler import wire
from gpufleet.scheduler.filtering import AnyNode, Unschedulable
from gpufleet.scheduler.scheduler import Scheduler

_log = get_logger("scheduler")

_WHOLE_NODES = (
    "kube-scheduler sent whole nodes instead of names: set nodeCacheCapable: true for this extender"
)


class Extender:
    """Answers kube-scheduler's verbs from one scheduler."""

    def __init__(self, scheduler: Scheduler, ready: Probe, max_body: int) -> None:
        """`ready` returns why this replica can't serve, or an empty string."""
        self._scheduler = scheduler
        self._ready = ready
        self._max_body = max_body

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
            max_body=self._max_body,
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
        choice = self._scheduler.filter(args.pod, names)
        if isinstance(choice, AnyNode):
            return wire.encode(wire.FilterResult(node_names=names))
        if isinstance(choice, Unschedulable):
            unresolvable = {name: choice.reasons[name] for name in choice.unresolvable}
            failed = {name: why for name, why in choice.reasons.items() if name not in unresolvable}
            return wire.encode(wire.FilterResult(failed=failed, unresolvable=unresolvable))
        return wire.encode(wire.FilterResult(node_names=[choice.node]))

    async def _prioritize(self, body: bytes) -> bytes:
        args = wire.decode(wire.ExtenderArgs, body)
        scores = self._scheduler.prioritize(args.pod, args.names)
        return wire.encode([wire.HostPriority(name, score) for name, score in scores.items()])

    async def _bind(self, body: bytes) -> bytes:
        args = wire.decode(wire.BindingArgs, body)
        error = await self._scheduler.bind(args.namespace, args.name, args.uid, args.node)
        return wire.encode(wire.BindingResult(error))

    async def _preempt(self, body: bytes) -> bytes:
        args = wire.decode(wire.PreemptionArgs, body)
        by_node = args.by_node()
        victims = self._scheduler.victims(args.pod, {node: uids for node, (uids, _) in by_node.items()})
        return wire.encode(
            wire.PreemptionResult(
                {
                    node: wire.MetaVictims([wire.MetaPod(uid) for uid in uids], by_node[node][1])
                    for node, uids in victims.items()
                }
            )
        )
