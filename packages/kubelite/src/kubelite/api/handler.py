"""From an HTTP request to a verb on a kind, and back.

`Api.answer` takes a request apart, finds the kind, runs the verb and encodes the result; what
it can't do comes out as a `Status`. Only watches stream; they live in `streams`.
"""

import asyncio
import logging
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from kubelite.api import query
from kubelite.api import responses as reads
from kubelite.api.paths import Target, target_of
from kubelite.api.requests import Call, decoded
from kubelite.api.reviews import answer_review
from kubelite.api.scale import scale_of, scaled
from kubelite.api.watch_streams import Streams
from kubelite.discovery.documents import Documents
from kubelite.errors import ApiError, bad_request, method_not_allowed, no_such_resource, success
from kubelite.json import Json, encode
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import Asking, User
from kubelite.objects.deletion import DeleteOptions, Deletion
from kubelite.objects.objects import Objects
from kubelite.objects.pods import bind, evict
from kubelite.objects.versions import encoded, in_version
from kubelite.patch.json_patch import json_patch, merge_patch
from kubelite.patch.strategic_merge import strategic_merge
from kubelite.storage.store import Entry

_JSON = {"Content-Type": "application/json"}
_COMPRESS_FROM = 128 * 1024
_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
_log = logging.getLogger("kubelite")


class Api:
    """Everything that the server answers."""

    def __init__(
        self,
        registry: Registry,
        objects: Objects,
        deletion: Deletion,
        streams: Streams,
        users: Mapping[str, User],
    ) -> None:
        self._registry = registry
        self._objects = objects
        self._deletion = deletion
        self._streams = streams
        self._users = users
        self._documents = Documents(registry)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; a refusal is a `Status`, and so is a fault of ours."""
        try:
            return await self._answer(request)
        except ApiError as error:
            headers = {**_JSON, **({"Retry-After": "1"} if error.code == 429 else {})}
            return web.Response(status=error.code, body=encode(error.wire()), headers=headers)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(ApiError(413, "Request entity too large: limit is 3145728"))
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  a bug in one answer must not end the connection without a word
            _log.exception("request_failed method=%s path=%s", request.method, request.path)
            return _refusal(ApiError(500, f"Internal error occurred: {error!r}"))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        user = self._user(request.headers.get("Authorization", ""))
        path = request.path
        target = target_of(path)
        if target is None:
            return self._fixed(request, path)
        kind = self._registry.find(target.group, target.version, target.plural)
        if kind is None:
            if self._registry.group_versions().get(target.group) is None:
                return web.Response(status=404, text="404 page not found\n")
            raise no_such_resource()
        if kind.namespaced and not target.namespace and (target.name or request.method == "POST"):
            raise no_such_resource() if target.name else method_not_allowed()
        if not kind.namespaced and target.namespace:
            raise no_such_resource()
        if request.method in ("GET", "HEAD"):
            return await self._read(request, target, kind)
        body = await request.read()
        return await self._write(self._call(request, target, kind, body, user))

    def _user(self, header: str) -> User:
        if not self._users:
            return User()
        scheme, _, token = header.partition(" ")
        user = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise ApiError(401, "Unauthorized")
        return user

    def _call(self, request: web.BaseRequest, target: Target, kind: Kind, body: bytes, user: User) -> Call:
        asked, headers = request.query, request.headers
        asking = Asking(
            user=user,
            manager=query.manager(asked, headers.get("User-Agent", "")),
            dry_run=query.dry_run(asked),
            field_validation=query.field_validation(asked),
        )
        if kind.warning:
            asking.warnings.append(kind.warning)
        content_type = headers.get("Content-Type", "application/json").partition(";")[0].strip()
        return Call(
            request.method, target, kind, asked, headers.get("Accept", ""), content_type, body, asking
        )

    def _fixed(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        accept = request.headers.get("Accept", "")
        found = self._documents.find(path.rstrip("/") or "/", accept, request.host)
        if found is None:
            return web.Response(status=404, text="404 page not found\n")
        body, content_type = found
        return _sized(request, body, {"Content-Type": content_type})

    async def _read(self, request: web.BaseRequest, target: Target, kind: Kind) -> web.StreamResponse:
        asked, accept = request.query, request.headers.get("Accept", "")
        if not kind.stored:
            raise method_not_allowed()
        if target.subresource:
            entry = self._objects.find(kind, target.namespace, target.name)
            return _sized(request, self._subresource(kind, target, entry), _JSON)
        if target.name and not query.flag(asked, "watch"):
            query.require_reached(query.version_of(asked), self._objects.store.version)
            entry = self._objects.find(kind, target.namespace, target.name)
            return _sized(request, reads.shown(kind, entry, accept, asked, self._objects.clock), _JSON)
        if query.flag(asked, "watch"):
            return await self._streams.serve(request, kind, target)
        return _sized(
            request,
            reads.listing(self._objects.store, kind, target.namespace, asked, accept, self._objects.clock),
            _JSON,
        )

    def _subresource(self, kind: Kind, target: Target, entry: Entry) -> bytes:
        if target.subresource == "status" and kind.status:
            return encoded(kind, entry)
        if target.subresource == "scale" and kind.scale is not None:
            return encode(scale_of(kind, in_version(kind, entry.object)))
        if target.subresource == "ephemeralcontainers" and target.subresource in kind.extra_subresources:
            return encoded(kind, entry)
        raise no_such_resource()

    async def _write(self, call: Call) -> web.StreamResponse:
        match call.method:
            case "POST":
                return await self._post(call)
            case "PUT":
                return await self._put(call)
            case "PATCH":
                return await self._patch(call)
            case "DELETE":
                return await self._delete(call)
        raise method_not_allowed()

    async def _post(self, call: Call) -> web.StreamResponse:
        kind, target, body = call.kind, call.target, decoded(call)
        if target.subresource:
            return await self._post_below(call, body)
        if target.name:
            raise method_not_allowed()
        if not kind.stored:
            if not isinstance(body, dict):
                raise bad_request(f"a {kind.kind} is a JSON object")
            return _json(201, encode(answer_review(kind.kind, body, call.asking.user, self._users)), call)
        entry = await self._objects.create(kind, target.namespace, body, call.asking)
        return self._object(201, call, entry)

    async def _post_below(self, call: Call, body: Any) -> web.StreamResponse:
        kind, target = call.kind, call.target
        if target.subresource not in kind.extra_subresources:
            raise no_such_resource()
        if target.subresource == "binding":
            return _json(
                201,
                encode(await bind(self._objects, kind, target.namespace, target.name, body, call.asking)),
                call,
            )
        if target.subresource == "eviction":
            answer = await evict(
                self._objects, self._deletion, kind, target.namespace, target.name, body, call.asking
            )
            return _json(201, encode(answer), call)
        raise method_not_allowed()

    async def _put(self, call: Call) -> web.StreamResponse:
        kind, target, body = call.kind, call.target, decoded(call)
        if not target.name:
            raise method_not_allowed()
        if target.subresource == "scale" and kind.scale is not None:
            return await self._rescale(call, lambda _scale: body)
        self._require_subresource(call)
        entry = await self._objects.update(
            kind, target.namespace, target.name, body, call.asking, target.subresource
        )
        return self._object(200, call, entry)

    def _require_subresource(self, call: Call) -> None:
        name = call.target.subresource
        if (
            name
            and not (name == "status" and call.kind.status)
            and name not in ("finalize", "ephemeralcontainers")
        ):
            raise no_such_resource()

    async def _rescale(self, call: Call, change: Any) -> web.StreamResponse:
        kind, target = call.kind, call.target

        def rescaled(item: Json) -> Json:
            return scaled(kind, item, change(scale_of(kind, item)))

        entry = await self._objects.change(kind, target.namespace, target.name, rescaled, call.asking)
        return _json(200, encode(scale_of(kind, in_version(kind, entry.object))), call)

    async def _patch(self, call: Call) -> web.StreamResponse:
        kind, target = call.kind, call.target
        if not target.name:
            raise method_not_allowed()
        if call.content_type not in _PATCHES or (kind.custom and "strategic" in call.content_type):
            raise ApiError(
                415,
                f"the body of the request was in an unknown format - accepted media types include: {', '.join(_PATCHES)}",
            )
        patch = decoded(call)
        if call.content_type == "application/apply-patch+yaml":
            return await self._apply(call, patch)

        def patched(item: Json) -> Json:
            if call.content_type == "application/json-patch+json":
                return json_patch(item, patch)
            if not isinstance(patch, dict):
                raise bad_request("a merge patch is a JSON object")
            if call.content_type == "application/merge-patch+json":
                result = merge_patch(item, patch)
                assert isinstance(result, dict)
                return result
            return strategic_merge(kind.schema, item, patch)

        if target.subresource == "scale" and kind.scale is not None:
            return await self._rescale(call, patched)
        self._require_subresource(call)
        entry = await self._objects.change(
            kind, target.namespace, target.name, patched, call.asking, target.subresource
        )
        return self._object(200, call, entry)

    async def _apply(self, call: Call, wanted: Any) -> web.StreamResponse:
        if not isinstance(wanted, dict):
            raise bad_request("an apply states an object")
        if not call.query.get("fieldManager"):
            raise ApiError(
                422,
                'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
            )
        self._require_subresource(call)
        entry, new = await self._objects.apply(
            call.kind,
            call.target.namespace,
            call.target.name,
            wanted,
            call.asking,
            call.target.subresource,
            force=query.flag(call.query, "force"),
        )
        return self._object(201 if new else 200, call, entry)

    async def _delete(self, call: Call) -> web.StreamResponse:
        kind, target = call.kind, call.target
        body = decoded(call) if call.body else None
        options = DeleteOptions.read(body, call.query)
        asking = call.asking
        if isinstance(body, dict) and body.get("dryRun"):
            asking = Asking(asking.user, asking.manager, True, asking.field_validation, asking.warnings)
        if target.subresource or not kind.stored:
            raise method_not_allowed()
        if not target.name:
            return await self._delete_all(call, options, asking)
        entry, gone = await self._deletion.delete(kind, target.namespace, target.name, options, asking)
        if gone and kind.shelf != "pods":
            return _json(
                200,
                encode(success(kind.group, kind.plural, target.name, entry.object["metadata"]["uid"])),
                call,
            )
        return self._object(200, call, entry)

    async def _delete_all(self, call: Call, options: DeleteOptions, asking: Asking) -> web.StreamResponse:
        kind = call.kind
        entries, metadata = reads.select(self._objects.store, kind, call.target.namespace, call.query)
        items = []
        for entry in list(entries):
            try:
                last, _ = await self._deletion.delete(kind, *entry.key, options, asking)
            except ApiError as error:
                if error.code != 404:
                    raise
                continue
            items.append(in_version(kind, last.object))
        head = {
            "kind": kind.list_kind or f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": metadata,
        }
        return _json(200, encode({**head, "items": items}), call)

    def _object(self, code: int, call: Call, entry: Entry) -> web.StreamResponse:
        return _json(code, reads.shown(call.kind, entry, call.accept, call.query, self._objects.clock), call)


def _json(code: int, body: bytes, call: Call) -> web.Response:
    response = web.Response(status=code, body=body, headers=_JSON)
    for text in call.asking.warnings:
        clean = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("\r", " ")
        response.headers.add("Warning", f'299 - "{clean[:1000]}"')
    return response


def _refusal(error: ApiError) -> web.Response:
    return web.Response(status=error.code, body=encode(error.wire()), headers=_JSON)


def _sized(request: web.BaseRequest, body: bytes, headers: Mapping[str, str]) -> web.Response:
    """A response, compressed where it is large and the client takes it."""
    if len(body) < _COMPRESS_FROM or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=body, headers=headers)
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return web.Response(
        body=packer.compress(body) + packer.flush(), headers={**headers, "Content-Encoding": "gzip"}
    )
