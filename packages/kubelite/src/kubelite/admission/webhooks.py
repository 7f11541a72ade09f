"""Call mutating and validating admission webhooks.

Webhook configurations are ordinary objects in the store. Mutating webhooks are called one after
another in the order of their names, validating webhooks concurrently. Each call has the timeout
of its webhook, and `failurePolicy` decides what a failed call means.
"""

import asyncio
import base64
import functools
import logging
import ssl
import uuid
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec

from kubelite.admission.matching import (
    AdmissionRequest,
    WebhookFailed,
    conditions_match,
    review_request,
    rule_matches,
)
from kubelite.errors import ApiError, bad_request
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.patch.json_patch import json_patch
from kubelite.selectors import match_label_selector
from kubelite.storage.store import Store

_MUTATING = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
_VALIDATING = "admissionregistration.k8s.io/validatingwebhookconfigurations"
_MAX_RESPONSE_BYTES = 8 * 1024 * 1024
_log = logging.getLogger("kubelite")


class Webhooks:
    """Call the webhooks that are configured in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections to webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(
        self,
        operation: str,
        kind: Kind,
        item: Json,
        old: Json | None,
        context: WriteContext,
        subresource: str,
    ) -> Json:
        """Return the object after all mutating webhooks; the same object if none changes it."""
        if not self._store.collection(_MUTATING).entries or kind.group == "admissionregistration.k8s.io":
            return item
        current = item
        reinvoke: list[Json] = []
        for hook in self._hooks(_MUTATING):
            changed = await self._mutated(
                hook, AdmissionRequest(operation, kind, current, old, context, subresource)
            )
            if changed is not current:
                current = changed
                for earlier in reinvoke:
                    current = await self._mutated(
                        earlier, AdmissionRequest(operation, kind, current, old, context, subresource)
                    )
            if hook.get("reinvocationPolicy") == "IfNeeded":
                reinvoke.append(hook)
        return current

    async def _mutated(self, hook: Json, request: AdmissionRequest) -> Json:
        assert request.item is not None
        response = await self._admit(hook, request)
        if response is None or not response.get("patch"):
            return request.item
        try:
            patched = json_patch(request.item, msgspec.json.decode(base64.b64decode(response["patch"])))
        except (ValueError, msgspec.DecodeError, ApiError) as error:
            raise ApiError(
                500,
                f"Internal error occurred: the patch of webhook {hook['name']!r} can't be applied: {error}",
            ) from error
        return request.item if patched == request.item else patched

    async def validate(
        self,
        operation: str,
        kind: Kind,
        item: Json | None,
        old: Json | None,
        context: WriteContext,
        subresource: str,
    ) -> None:
        """Raise ApiError if a validating webhook denies the write."""
        if not self._store.collection(_VALIDATING).entries or kind.group == "admissionregistration.k8s.io":
            return
        request = AdmissionRequest(operation, kind, item, old, context, subresource)
        results = await asyncio.gather(
            *(self._admit(hook, request) for hook in self._hooks(_VALIDATING)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _hooks(self, collection: str) -> Iterator[Json]:
        for entry in list(self._store.collection(collection).in_order()):
            yield from entry.object.get("webhooks") or ()

    async def _admit(self, hook: Json, request: AdmissionRequest) -> Json | None:
        """Call a webhook and return its response.

        Return None if the webhook is not concerned or its failure is ignored. Raise ApiError if it denies.
        """
        if not self._is_concerned(hook, request):
            return None
        name = hook.get("name", "")
        if request.context.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            if not conditions_match(hook, request):
                return None
            response = await self._call(hook, request)
        except WebhookFailed as error:
            if hook.get("failurePolicy") == "Ignore":
                _log.warning("webhook_failure_ignored webhook=%s error=%s", name, error)
                return None
            message = f'failed calling webhook "{name}": failed to call webhook: {error}'
            raise ApiError(
                500, f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
            ) from error
        request.context.warnings.extend(str(text) for text in response.get("warnings") or ())
        if response.get("allowed"):
            return response
        status = response.get("status") or {}
        why = status.get("message") or status.get("reason")
        text = f": {why}" if why else " without explanation"
        refusal = ApiError(
            max(int(status.get("code") or 0), 400), f'admission webhook "{name}" denied the request{text}'
        )
        refusal.reason = status.get("reason") or ""
        raise refusal

    def _is_concerned(self, hook: Json, request: AdmissionRequest) -> bool:
        if not any(rule_matches(rule, request) for rule in hook.get("rules") or ()):
            return False
        if not match_label_selector(hook.get("namespaceSelector"), self._namespace_labels(request)) and (
            request.kind.namespaced or request.kind.collection == "namespaces"
        ):
            return False
        selector = hook.get("objectSelector")
        states = [state for state in (request.item, request.old) if state is not None]
        return any(match_label_selector(selector, state["metadata"].get("labels") or {}) for state in states)

    def _namespace_labels(self, request: AdmissionRequest) -> dict[str, str]:
        metadata = request.current["metadata"]
        if request.kind.collection == "namespaces":
            return metadata.get("labels") or {}
        namespace = self._store.get("namespaces", "", metadata.get("namespace", ""))
        return {} if namespace is None else namespace.object["metadata"].get("labels") or {}

    async def _call(self, hook: Json, request: AdmissionRequest) -> Json:
        client = hook.get("clientConfig") or {}
        url = client.get("url")
        if not url:
            service = client.get("service") or {}
            raise WebhookFailed(
                f"kubelite has no service network to reach {service.get('namespace')}/{service.get('name')}; use clientConfig.url"
            )
        uid = str(uuid.uuid4())
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": review_request(uid, request),
        }
        timeout = aiohttp.ClientTimeout(total=float(hook.get("timeoutSeconds") or 10))
        session = self._open_session()
        try:
            async with session.post(
                url,
                data=encode(review),
                headers={"Content-Type": "application/json"},
                timeout=timeout,
                params={"timeout": f"{hook.get('timeoutSeconds') or 10}s"},
                ssl=_ssl_context(client.get("caBundle")),
            ) as response:
                if response.status != 200:
                    raise WebhookFailed(f"the server responded with {response.status}")
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _MAX_RESPONSE_BYTES:
                        raise WebhookFailed(f"the response is larger than {_MAX_RESPONSE_BYTES:,} bytes")
        except TimeoutError as error:
            raise WebhookFailed("context deadline exceeded") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookFailed(str(error)) from error
        return _response(uid, body)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session


# aiohttp reuses a connection only with the same SSL context, so contexts are cached per bundle.
@functools.lru_cache(maxsize=64)
def _ssl_context(bundle: str | None) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode()) if bundle else True


def _response(uid: str, body: bytearray) -> Json:
    try:
        review: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise WebhookFailed(f"the response is not JSON: {error}") from error
    response = review.get("response") if isinstance(review, dict) else None
    if not isinstance(response, dict):
        raise WebhookFailed("the review has no response")
    if response.get("uid") != uid:
        raise WebhookFailed(f"expected response.uid={uid}, got {response.get('uid')}")
    return response
