"""The webhook's HTTPS port: /mutate for pods, /validate for claims, probes and metrics.

aiohttp's bare server. A connection that the API server keeps open is never closed under it while it may
be about to send: it is kept longer than Go's client keeps idle ones, and when the webhook stops it first
tells on each answer that the connection ends, for as long as the API server may still find it.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gpufleet.errors import GpufleetError, InvalidRequest, KubernetesUnavailable
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.runtime.logs import get_logger
from gpufleet.webhook.claim_validation import judge_claim
from gpufleet.webhook.pod_admission import PodRules, admit_change, admit_new, claim_named
from gpufleet.webhook.wire import MOST_BYTES, AdmissionRequest, AdmissionVerdict, read_review, write_review

KEEP_ALIVE = 300.0
"""Seconds for which an idle connection is kept; Go's client closes its own after 90."""
_log = get_logger("webhook")


class Claims(Protocol):
    """Where claims are found."""

    async def find(self, namespace: str, name: str) -> GpuClaim | None:
        """The claim of that name; KubernetesUnavailable if nobody can tell."""
        ...


class Webhook:
    """Answers reviews."""

    def __init__(self, claims: Claims, rules: PodRules, ready: Callable[[], bool] = lambda: True) -> None:
        self.stopping = False
        self._claims = claims
        self._rules = rules
        self._ready = ready
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            "gpufleet_webhook_reviews",
            "Reviews by path and result.",
            ("path", "result"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpufleet_webhook_review_seconds", "Time for one review.", ("path",), registry=self._registry
        )
        self._judges: dict[str, Callable[[AdmissionRequest], Awaitable[AdmissionVerdict]]] = {
            "/mutate": self.mutate,
            "/validate": self.validate,
        }

    async def mutate(self, asked: AdmissionRequest) -> AdmissionVerdict:
        """What becomes of a pod."""
        if asked.operation != "CREATE":
            return admit_change(asked, self._rules)
        name = claim_named(asked)
        claim = await self._claims.find(asked.namespace, name) if name else None
        return admit_new(asked, claim, self._rules)

    async def validate(self, asked: AdmissionRequest) -> AdmissionVerdict:
        """Whether a claim may be stored."""
        return judge_claim(asked)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        response = await self._answer(request)
        if self.stopping:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in self._judges:
            if request.method != "POST":
                return web.Response(status=405, headers={"Allow": "POST"}, text="send an AdmissionReview\n")
            return await self._review(path, request)
        if path == "/livez":
            return web.Response(text="ok\n")
        if path == "/readyz":
            well = self._ready() and not self.stopping
            return web.Response(status=200 if well else 503, text="ok\n" if well else "not ready\n")
        if path == "/metrics":
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            return web.Response(body=generate_latest(self._registry), headers=headers)
        return web.Response(status=404, text="there are /mutate, /validate, /livez, /readyz and /metrics\n")

    async def _review(self, path: str, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        try:
            asked = read_review(await request.read())
        except InvalidRequest as error:
            self._reviews.labels(path, "malformed").inc()
            return web.Response(status=400, text=f"{error}\n")
        verdict = await self._judge(path, asked)
        result = "refused" if verdict.refusal else "patched" if verdict.patch else "allowed"
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(time.perf_counter() - started)
        return web.Response(body=write_review(asked.uid, verdict), content_type="application/json")

    async def _judge(self, path: str, asked: AdmissionRequest) -> AdmissionVerdict:
        try:
            return await self._judges[path](asked)
        except KubernetesUnavailable as error:
            _log.warning("review not decided", path=path, error=str(error))
            return AdmissionVerdict(refusal=f"try again: {error}", code=503, reason="ServiceUnavailable")
        except GpufleetError as error:
            _log.warning("review not decided", path=path, error=str(error))
            return AdmissionVerdict(refusal=str(error), code=500, reason="InternalError")


@asynccontextmanager
async def serving(
    webhook: Webhook, host: str, port: int, context: ssl.SSLContext, *, drain: float = 5.0
) -> AsyncIterator[int]:
    """Serve within the block; the value is the port. `drain` seconds go by before the port closes."""
    runner = web.ServerRunner(
        web.Server(webhook.answer, access_log=None, keepalive_timeout=KEEP_ALIVE, request_factory=_request),
        handle_signals=False,
        shutdown_timeout=5.0,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=context, backlog=1024)
        await site.start()
        yield int(runner.addresses[0][1])
        webhook.stopping = True
        await asyncio.sleep(drain)
    finally:
        await runner.cleanup()


def _request(message, payload, protocol, writer, task, loop=None):  # type: ignore[no-untyped-def]  # aiohttp's own signature
    return web.BaseRequest(
        message, payload, protocol, writer, task, protocol._loop, client_max_size=MOST_BYTES
    )
