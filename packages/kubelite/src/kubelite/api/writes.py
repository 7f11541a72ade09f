"""Run the verbs that change objects: create, update, patch, apply, delete and subresource calls."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from kubelite.api import query, responses
from kubelite.api.requests import WriteRequest, decode_body
from kubelite.api.reviews import answer_review
from kubelite.api.scale import get_scale, with_scale
from kubelite.errors import ApiError, bad_request, method_not_allowed, no_such_resource, success
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.context import User, WriteContext
from kubelite.objects.deletion import DeleteOptions, Deletion
from kubelite.objects.objects import Objects
from kubelite.objects.pods import bind, evict
from kubelite.objects.versions import convert
from kubelite.patch.json_patch import json_patch, merge_patch
from kubelite.patch.strategic_merge import strategic_merge
from kubelite.storage.store import Entry

_PATCH_TYPES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)


class Writes:
    """Answer POST, PUT, PATCH and DELETE."""

    def __init__(self, objects: Objects, deletion: Deletion, users: Mapping[str, User]) -> None:
        self._objects = objects
        self._deletion = deletion
        self._users = users

    async def handle(self, request: WriteRequest) -> web.Response:
        """Run one write."""
        match request.method:
            case "POST":
                return await self._post(request)
            case "PUT":
                return await self._put(request)
            case "PATCH":
                return await self._patch(request)
            case "DELETE":
                return await self._delete(request)
        raise method_not_allowed()

    async def _post(self, request: WriteRequest) -> web.Response:
        kind, target, body = request.kind, request.target, decode_body(request)
        if target.subresource:
            return await self._post_subresource(request, body)
        if target.name:
            raise method_not_allowed()
        if not kind.stored:
            if not isinstance(body, dict):
                raise bad_request(f"a {kind.kind} is a JSON object")
            review = answer_review(kind.kind, body, request.context.user, self._users)
            return _json(201, encode(review), request)
        entry = await self._objects.create(kind, target.namespace, body, request.context)
        return self._object(201, request, entry)

    async def _post_subresource(self, request: WriteRequest, body: Any) -> web.Response:
        kind, target, context = request.kind, request.target, request.context
        if target.subresource not in kind.extra_subresources:
            raise no_such_resource()
        if target.subresource == "binding":
            status = await bind(self._objects, kind, target.namespace, target.name, body, context)
        elif target.subresource == "eviction":
            status = await evict(
                self._objects, self._deletion, kind, target.namespace, target.name, body, context
            )
        else:
            raise method_not_allowed()
        return _json(201, encode(status), request)

    async def _put(self, request: WriteRequest) -> web.Response:
        kind, target, body = request.kind, request.target, decode_body(request)
        if not target.name:
            raise method_not_allowed()
        if target.subresource == "scale" and kind.scale is not None:
            return await self._put_scale(request, lambda _scale: body)
        _require_subresource(request)
        entry = await self._objects.update(
            kind, target.namespace, target.name, body, request.context, target.subresource
        )
        return self._object(200, request, entry)

    async def _put_scale(self, request: WriteRequest, change: Callable[[Json], Any]) -> web.Response:
        kind, target = request.kind, request.target

        def rescale(item: Json) -> Json:
            return with_scale(kind, item, change(get_scale(kind, item)))

        entry = await self._objects.change(kind, target.namespace, target.name, rescale, request.context)
        return _json(200, encode(get_scale(kind, convert(kind, entry.object))), request)

    async def _patch(self, request: WriteRequest) -> web.Response:
        kind, target, content_type = request.kind, request.target, request.content_type
        if not target.name:
            raise method_not_allowed()
        if content_type not in _PATCH_TYPES or (kind.custom and "strategic" in content_type):
            raise ApiError(
                415,
                f"the body of the request was in an unknown format - accepted media types include: {', '.join(_PATCH_TYPES)}",
            )
        patch = decode_body(request)
        if content_type == "application/apply-patch+yaml":
            return await self._apply(request, patch)

        def apply_patch(item: Json) -> Json:
            return _patched(kind, item, patch, content_type)

        if target.subresource == "scale" and kind.scale is not None:
            return await self._put_scale(request, apply_patch)
        _require_subresource(request)
        entry = await self._objects.change(
            kind, target.namespace, target.name, apply_patch, request.context, target.subresource
        )
        return self._object(200, request, entry)

    async def _apply(self, request: WriteRequest, intent: Any) -> web.Response:
        if not isinstance(intent, dict):
            raise bad_request("the body of an apply is an object")
        if not request.query.get("fieldManager"):
            raise ApiError(
                422,
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
            )
        _require_subresource(request)
        entry, created = await self._objects.apply(
            request.kind,
            request.target.namespace,
            request.target.name,
            intent,
            request.context,
            request.target.subresource,
            force=query.boolean(request.query, "force"),
        )
        return self._object(201 if created else 200, request, entry)

    async def _delete(self, request: WriteRequest) -> web.Response:
        kind, target = request.kind, request.target
        body = decode_body(request) if request.body else None
        options = DeleteOptions.read(body, request.query)
        context = request.context
        if isinstance(body, dict) and body.get("dryRun"):
            context = replace(context, dry_run=True)
        if target.subresource or not kind.stored:
            raise method_not_allowed()
        if not target.name:
            return await self._delete_collection(request, options, context)
        entry, deleted = await self._deletion.delete(kind, target.namespace, target.name, options, context)
        if deleted and kind.collection != "pods":
            status = success(kind.group, kind.plural, target.name, entry.object["metadata"]["uid"])
            return _json(200, encode(status), request)
        return self._object(200, request, entry)

    async def _delete_collection(
        self, request: WriteRequest, options: DeleteOptions, context: WriteContext
    ) -> web.Response:
        kind = request.kind
        entries, metadata = responses.select(
            self._objects.store, kind, request.target.namespace, request.query
        )
        items = []
        for entry in list(entries):
            try:
                last, _ = await self._deletion.delete(kind, *entry.key, options, context)
            except ApiError as error:
                if error.code != 404:
                    raise
                continue
            items.append(convert(kind, last.object))
        return _json(200, encode({**responses.list_head(kind, metadata), "items": items}), request)

    def _object(self, code: int, request: WriteRequest, entry: Entry) -> web.Response:
        clock = self._objects.clock
        body = responses.render(request.kind, entry, request.accept, request.query, clock)
        return _json(code, body, request)


def _patched(kind: Kind, item: Json, patch: Any, content_type: str) -> Json:
    if content_type == "application/json-patch+json":
        return json_patch(item, patch)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch is a JSON object")
    if content_type == "application/merge-patch+json":
        result = merge_patch(item, patch)
        assert isinstance(result, dict)
        return result
    return strategic_merge(kind.schema, item, patch)


def _require_subresource(request: WriteRequest) -> None:
    name = request.target.subresource
    served = name in ("", "finalize", "ephemeralcontainers") or (name == "status" and request.kind.status)
    if not served:
        raise no_such_resource()


def _json(code: int, body: bytes, request: WriteRequest) -> web.Response:
    response = web.Response(status=code, body=body, headers={"Content-Type": "application/json"})
    for text in request.context.warnings:
        clean = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("\r", " ")
        response.headers.add("Warning", f'299 - "{clean[:1000]}"')
    return response
