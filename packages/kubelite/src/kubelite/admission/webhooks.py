"""Mutating and validating webhooks, called as a real server calls them.

Configurations are ordinary objects; which webhooks a write meets is decided by their rules,
selectors and CEL match conditions. Mutating ones are called one after another in the order of
their names, validating ones together. Every call has the webhook's own timeout; what a failed
call means is its `failurePolicy`.
"""

import asyncio
import base64
import functools
import logging
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from kubelite.custom_resources.cel_rules import compile_expression, evaluate
from kubelite.errors import ApiError, bad_request
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.context import Asking
from kubelite.patch.json_patch import json_patch
from kubelite.selectors import match_label_selector
from kubelite.storage.store import Store

_MUTATING = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
_VALIDATING = "admissionregistration.k8s.io/validatingwebhookconfigurations"
_ANSWER_BYTES = 8 * 1024 * 1024
_log = logging.getLogger("kubelite")


class CallFailed(Exception):
    """A webhook did not answer, or not as it should."""


@dataclass(frozen=True)
class Asked:
    """The write that webhooks are asked about."""

    operation: str
    kind: Kind
    item: Json | None
    old: Json | None
    asking: Asking
    subresource: str

    @property
    def named(self) -> Json:
        """The object that carries the name and labels: the new one, or the old one of a deletion."""
        found = self.item if self.item is not None else self.old
        assert found is not None
        return found


class Webhooks:
    """Calls the webhooks that are configured in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections to webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(
        self, operation: str, kind: Kind, item: Json, old: Json | None, asking: Asking, subresource: str
    ) -> Json:
        """The object as the mutating webhooks leave it; the same one if none changes it."""
        if not self._store.shelf(_MUTATING).entries or kind.group == "admissionregistration.k8s.io":
            return item
        current = item
        again: list[Json] = []
        for hook in self._hooks(_MUTATING):
            changed = await self._mutated(hook, Asked(operation, kind, current, old, asking, subresource))
            if changed is not current:
                current = changed
                for earlier in again:
                    current = await self._mutated(
                        earlier, Asked(operation, kind, current, old, asking, subresource)
                    )
            if hook.get("reinvocationPolicy") == "IfNeeded":
                again.append(hook)
        return current

    async def _mutated(self, hook: Json, asked: Asked) -> Json:
        assert asked.item is not None
        response = await self._ask(hook, asked)
        if response is None or not response.get("patch"):
            return asked.item
        try:
            patched = json_patch(asked.item, msgspec.json.decode(base64.b64decode(response["patch"])))
        except (ValueError, msgspec.DecodeError, ApiError) as error:
            raise ApiError(
                500,
                f"Internal error occurred: the patch of webhook {hook['name']!r} can't be applied: {error}",
            ) from error
        return asked.item if patched == asked.item else patched

    async def validate(
        self,
        operation: str,
        kind: Kind,
        item: Json | None,
        old: Json | None,
        asking: Asking,
        subresource: str,
    ) -> None:
        """Refuse the write if a validating webhook does."""
        if not self._store.shelf(_VALIDATING).entries or kind.group == "admissionregistration.k8s.io":
            return
        asked = Asked(operation, kind, item, old, asking, subresource)
        answers = await asyncio.gather(
            *(self._ask(hook, asked) for hook in self._hooks(_VALIDATING)), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _hooks(self, shelf: str) -> Iterator[Json]:
        for entry in list(self._store.shelf(shelf).in_order()):
            yield from entry.object.get("webhooks") or ()

    async def _ask(self, hook: Json, asked: Asked) -> Json | None:
        """The webhook's response, None if it isn't concerned or may be ignored; ApiError if it refuses."""
        if not self._concerned(hook, asked):
            return None
        name = hook.get("name", "")
        if asked.asking.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise bad_request(f'admission webhook "{name}" does not support dry run')
        try:
            if not _conditions_hold(hook, asked):
                return None
            response = await self._call(hook, asked)
        except CallFailed as error:
            if hook.get("failurePolicy") == "Ignore":
                _log.warning("webhook_failure_ignored webhook=%s error=%s", name, error)
                return None
            message = f'failed calling webhook "{name}": failed to call webhook: {error}'
            raise ApiError(
                500, f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
            ) from error
        asked.asking.warnings.extend(str(text) for text in response.get("warnings") or ())
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

    def _concerned(self, hook: Json, asked: Asked) -> bool:
        if not any(_rule_matches(rule, asked) for rule in hook.get("rules") or ()):
            return False
        if not match_label_selector(hook.get("namespaceSelector"), self._space_labels(asked)) and (
            asked.kind.namespaced or asked.kind.shelf == "namespaces"
        ):
            return False
        selector = hook.get("objectSelector")
        states = [state for state in (asked.item, asked.old) if state is not None]
        return any(match_label_selector(selector, state["metadata"].get("labels") or {}) for state in states)

    def _space_labels(self, asked: Asked) -> dict[str, str]:
        metadata = asked.named["metadata"]
        if asked.kind.shelf == "namespaces":
            return metadata.get("labels") or {}
        space = self._store.get("namespaces", "", metadata.get("namespace", ""))
        return {} if space is None else space.object["metadata"].get("labels") or {}

    async def _call(self, hook: Json, asked: Asked) -> Json:
        client = hook.get("clientConfig") or {}
        url = client.get("url")
        if not url:
            service = client.get("service") or {}
            raise CallFailed(
                f"kubelite has no service network to reach {service.get('namespace')}/{service.get('name')}; use clientConfig.url"
            )
        uid = str(uuid.uuid4())
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": _request(uid, asked),
        }
        timeout = aiohttp.ClientTimeout(total=float(hook.get("timeoutSeconds") or 10))
        session = self._connected()
        try:
            async with session.post(
                url,
                data=encode(review),
                headers={"Content-Type": "application/json"},
                timeout=timeout,
                params={"timeout": f"{hook.get('timeoutSeconds') or 10}s"},
                ssl=_trust(client.get("caBundle")),
            ) as answer:
                if answer.status != 200:
                    raise CallFailed(f"the server answered {answer.status}")
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > _ANSWER_BYTES:
                        raise CallFailed(f"the answer is larger than {_ANSWER_BYTES:,} bytes")
        except TimeoutError as error:
            raise CallFailed("context deadline exceeded") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(str(error)) from error
        return _response(uid, body)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session


# A connection is used again for a call with the same context only, so there is one for each bundle.
@functools.lru_cache(maxsize=64)
def _trust(bundle: str | None) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode()) if bundle else True


def _response(uid: str, body: bytearray) -> Json:
    try:
        review: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise CallFailed(f"the answer is no JSON: {error}") from error
    response = review.get("response") if isinstance(review, dict) else None
    if not isinstance(response, dict):
        raise CallFailed("the answer has no response")
    if response.get("uid") != uid:
        raise CallFailed(f"expected response.uid={uid}, got {response.get('uid')}")
    return response


def _rule_matches(rule: Json, asked: Asked) -> bool:
    kind = asked.kind
    return (
        _in(rule.get("operations"), asked.operation)
        and _in(rule.get("apiGroups"), kind.group)
        and _in(rule.get("apiVersions"), kind.version)
        and any(_resource_matches(one, kind.plural, asked.subresource) for one in rule.get("resources") or ())
        and rule.get("scope", "*") in ("*", "Namespaced" if kind.namespaced else "Cluster")
    )


def _in(words: list[str] | None, word: str) -> bool:
    return bool(words) and ("*" in (words or ()) or word in (words or ()))


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, below = pattern.partition("/")
    if pattern == "*":
        return not subresource
    return resource in ("*", plural) and below in ("*", subresource)


def _conditions_hold(hook: Json, asked: Asked) -> bool:
    conditions = hook.get("matchConditions") or ()
    if not conditions:
        return True
    variables = {"object": asked.item, "oldObject": asked.old, "request": _request("", asked)}
    failed = ""
    for condition in conditions:
        try:
            if evaluate(compile_expression(condition.get("expression", "")), variables) is not True:
                return False
        except ValueError as error:
            failed = f"matchCondition {condition.get('name')!r}: {error}"
    if failed:
        raise CallFailed(failed)
    return True


def _request(uid: str, asked: Asked) -> Json:
    kind, metadata = asked.kind, asked.named["metadata"]
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    gvr = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    request: Json = {
        "uid": uid,
        "kind": gvk,
        "resource": gvr,
        "requestKind": gvk,
        "requestResource": gvr,
        "name": metadata.get("name", ""),
        "operation": asked.operation,
        "userInfo": asked.asking.user.wire(),
        "object": asked.item,
        "oldObject": asked.old,
        "dryRun": asked.asking.dry_run,
        "options": {"kind": f"{asked.operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    if metadata.get("namespace"):
        request["namespace"] = metadata["namespace"]
    if asked.subresource:
        request |= {"subResource": asked.subresource, "requestSubResource": asked.subresource}
    return request
