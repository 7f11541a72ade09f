"""Answer AdmissionReviews: `/mutate` for pods, `/validate` for claims."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gpufleet.errors import GpufleetError, InvalidRequest, KubernetesUnavailable
from gpufleet.runtime.http_listener import Handler, HttpListener
from gpufleet.runtime.logs import get_logger
from gpufleet.webhook.claim_lookup import ClaimLookup
from gpufleet.webhook.claim_validation import validate_claim
from gpufleet.webhook.pod_admission import PodRules, admit_create, admit_update, check_pod, claim_name
from gpufleet.webhook.wire import (
    MAX_REVIEW_BYTES,
    AdmissionRequest,
    AdmissionResponse,
    decode_review,
    encode_review,
)

_Review = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]
_log = get_logger("webhook")


class Webhook:
    """Reviews pods and claims, and counts the reviews."""

    def __init__(
        self, claims: ClaimLookup, rules: PodRules, by_resource_claim: Callable[[], bool] = lambda: False
    ) -> None:
        """`by_resource_claim` returns whether ResourceClaims deliver the GPUs of new pods (mode `dra`)."""
        self._claims = claims
        self._rules = rules
        self._by_resource_claim = by_resource_claim
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

    def listener(self) -> HttpListener:
        """Return the HTTPS port with reviews, probes and metrics."""
        return HttpListener(
            metrics=lambda: generate_latest(self._registry),
            posts={
                "/mutate": self._handler("/mutate", self._mutate),
                "/validate": self._handler("/validate", self._validate),
            },
            max_body=MAX_REVIEW_BYTES,
        )

    async def _mutate(self, request: AdmissionRequest) -> AdmissionResponse:
        check_pod(request)
        if request.operation != "CREATE":
            return admit_update(request, self._rules)
        name = claim_name(request)
        claim = await self._claims.find(request.namespace, name) if name else None
        rules = replace(self._rules, by_resource_claim=self._by_resource_claim())
        return admit_create(request, claim, rules)

    async def _validate(self, request: AdmissionRequest) -> AdmissionResponse:
        return validate_claim(request)

    def _handler(self, path: str, review: _Review) -> Handler:
        async def answer(http_request: web.Request) -> web.Response:
            started = time.perf_counter()
            try:
                request = decode_review(await http_request.read())
                response = await _reviewed(path, review, request)
                body = encode_review(request.uid, response)
            except (InvalidRequest, RecursionError) as error:
                self._reviews.labels(path, "malformed").inc()
                return web.Response(status=400, text=f"{error}\n")
            result = "refused" if response.refusal else "patched" if response.patch else "allowed"
            self._reviews.labels(path, result).inc()
            self._seconds.labels(path).observe(time.perf_counter() - started)
            return web.Response(body=body, content_type="application/json")

        return answer


async def _reviewed(path: str, review: _Review, request: AdmissionRequest) -> AdmissionResponse:
    try:
        return await review(request)
    except KubernetesUnavailable as error:
        _log.warning("review_failed", path=path, error=str(error))
        return AdmissionResponse(refusal=f"try again: {error}", code=503, reason="ServiceUnavailable")
    except InvalidRequest:
        raise
    except GpufleetError as error:
        _log.warning("review_failed", path=path, error=str(error))
        return AdmissionResponse(refusal=str(error), code=500, reason="InternalError")
