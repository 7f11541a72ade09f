"""kube-scheduler's HTTP extender: four verbs, health, and metrics, as a bare ASGI application.

Bare, because one answer must cost far less than the decision in it, and nothing of a
framework (routing by type, negotiation, documents) is of use to kube-scheduler.
Only the leader answers verbs; others say 503, after which kube-scheduler tries again.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gpufleet.errors import InvalidRequest
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler import wire
from gpufleet.scheduler.filtering import Everywhere, Unfit
from gpufleet.scheduler.scheduler import Scheduler

_log = get_logger("scheduler")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, bytes, str]

_WHOLE_NODES = (
    "kube-scheduler sent whole nodes instead of names: set nodeCacheCapable: true for this extender"
)
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class Extender:
    """The ASGI application over one replica's desk."""

    def __init__(self, desk: Scheduler, ready: Callable[[], str], max_body: int) -> None:
        """`ready` says what keeps this replica from serving, or nothing."""
        self._desk = desk
        self._ready = ready
        self._max_body = max_body
        self._verbs: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, body, kind = await self._answer(scope["method"], scope["path"], receive)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, method: str, path: str, receive: Receive) -> Answer:
        if path in ("/livez", "/healthz"):
            return 200, b"ok", _TEXT
        if path == "/readyz":
            problem = self._ready()
            return (503, problem.encode(), _TEXT) if problem else (200, b"ok", _TEXT)
        if path == "/metrics":
            self._desk.refresh_metrics()
            return 200, self._desk.metrics.render(), _TEXT
        verb = self._verbs.get(path)
        if verb is None:
            return 404, f"no verb {path}; there are {', '.join(self._verbs)}".encode(), _TEXT
        if method != "POST":
            return 405, b"verbs are called with POST", _TEXT
        body = await self._read(receive)
        if body is None:
            return 413, f"the body is larger than {self._max_body} bytes".encode(), _TEXT
        return await self._call(path, verb, body)

    async def _call(self, path: str, verb: Callable[[bytes], Awaitable[bytes]], body: bytes) -> Answer:
        if problem := self._ready():
            return 503, problem.encode(), _TEXT
        try:
            return 200, await verb(body), _JSON
        except InvalidRequest as error:
            return 400, str(error).encode(), _TEXT
        except Exception:  # noqa: BLE001  the answer must say that it failed, whatever it was
            _log.exception("verb failed", verb=path)
            return 500, b"the scheduler failed at this; see its log", _TEXT

    async def _read(self, receive: Receive) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body:
                return None
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _filter(self, body: bytes) -> bytes:
        asked = wire.decode(wire.ExtenderArgs, body)
        if asked.node_names is None and asked.nodes is not None:
            # It would overlook names in the answer and call every pod unschedulable, without a word why.
            return wire.encode(wire.FilterResult(error=_WHOLE_NODES))
        names = asked.names
        choice = self._desk.filter(asked.pod, names)
        if isinstance(choice, Everywhere):
            return wire.encode(wire.FilterResult(node_names=names))
        if isinstance(choice, Unfit):
            hopeless = {name: choice.reasons[name] for name in choice.unresolvable}
            failed = {name: why for name, why in choice.reasons.items() if name not in hopeless}
            return wire.encode(wire.FilterResult(failed=failed, unresolvable=hopeless))
        return wire.encode(wire.FilterResult(node_names=[choice.node]))

    async def _prioritize(self, body: bytes) -> bytes:
        asked = wire.decode(wire.ExtenderArgs, body)
        scores = self._desk.prioritize(asked.pod, asked.names)
        return wire.encode([wire.HostPriority(name, score) for name, score in scores.items()])

    async def _bind(self, body: bytes) -> bytes:
        asked = wire.decode(wire.BindingArgs, body)
        error = await self._desk.bind(asked.namespace, asked.name, asked.uid, asked.node)
        return wire.encode(wire.BindingResult(error))

    async def _preempt(self, body: bytes) -> bytes:
        asked = wire.decode(wire.PreemptionArgs, body)
        by_node = asked.by_node()
        found = self._desk.victims(asked.pod, {node: uids for node, (uids, _) in by_node.items()})
        return wire.encode(
            wire.PreemptionResult(
                {
                    node: wire.MetaVictims([wire.MetaPod(uid) for uid in uids], by_node[node][1])
                    for node, uids in found.items()
                }
            )
        )
