"""Route HTTP requests: find the kind that a path names and run the verb.

Reads are answered here, writes in `writes`, watches in `watch_streams`. Every error is returned
as a Kubernetes `Status`.
"""

import asyncio
import logging
import zlib
from collections.abc import Mapping

from aiohttp import web

from kubelite.api import query, responses
from kubelite.api.access import Access, check_body_type
from kubelite.api.paths import Target, parse_path
from kubelite.api.requests import WriteRequest
from kubelite.api.scale import get_scale
from kubelite.api.watch_streams import WatchStreams
from kubelite.api.writes import Writes
from kubelite.discovery.documents import Documents
from kubelite.errors import ApiError, method_not_allowed, no_such_resource
from kubelite.json import encode
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import User, WriteContext
from kubelite.objects.deletion import Deletion
from kubelite.objects.objects import Objects
from kubelite.objects.versions import convert, encode_object
from kubelite.storage.store import Entry

_JSON = {"Content-Type": "application/json"}
_MIN_COMPRESSED_BYTES = 128 * 1024
_log = logging.getLogger("kubelite")


class Handler:
    """Answer every request to the server."""

    def __init__(
        self,
        registry: Registry,
        objects: Objects,
        deletion: Deletion,
        watches: WatchStreams,
        users: Mapping[str, User],
        host: str,
    ) -> None:
        self._registry = registry
        self._objects = objects
        self._watches = watches
        self._access = Access(users, host)
        self._documents = Documents(registry)
        self._writes = Writes(objects, deletion, users)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; return errors, unexpected ones included, as a `Status`."""
        try:
            return await self._handle(request)
        except ApiError as error:
            return _error_response(error)
        except web.HTTPRequestEntityTooLarge:
            return _error_response(ApiError(413, "Request entity too large: limit is 3145728"))
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001  a bug must become a 500, not a dropped connection
            _log.exception("request_failed method=%s path=%s", request.method, request.path)
            return _error_response(ApiError(500, f"Internal error occurred: {error!r}"))

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        user = self._access.authenticate(request)
        target = parse_path(request.path)
        if target is None:
            return self._document(request)
        kind = self._registry.find(target.group, target.version, target.plural)
        if kind is None:
            if self._registry.group_versions().get(target.group) is None:
                return _page_not_found()
            raise no_such_resource()
        if kind.namespaced and not target.namespace and (target.name or request.method == "POST"):
            raise no_such_resource() if target.name else method_not_allowed()
        if not kind.namespaced and target.namespace:
            raise no_such_resource()
        if request.method in ("GET", "HEAD"):
            return await self._read(request, target, kind)
        content_type = check_body_type(request)
        write = self._write_request(request, target, kind, content_type, await request.read(), user)
        return await self._writes.handle(write)

    def _write_request(
        self,
        request: web.BaseRequest,
        target: Target,
        kind: Kind,
        content_type: str,
        body: bytes,
        user: User,
    ) -> WriteRequest:
        params, headers = request.query, request.headers
        context = WriteContext(
            user=user,
            manager=query.manager(params, headers.get("User-Agent", "")),
            dry_run=query.dry_run(params),
            field_validation=query.field_validation(params),
        )
        if kind.warning:
            context.warnings.append(kind.warning)
        accept = headers.get("Accept", "")
        return WriteRequest(request.method, target, kind, params, accept, content_type, body, context)

    def _document(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        accept = request.headers.get("Accept", "")
        found = self._documents.find(request.path.rstrip("/") or "/", accept, request.host)
        if found is None:
            return _page_not_found()
        body, content_type = found
        return _response(request, body, {"Content-Type": content_type})

    async def _read(self, request: web.BaseRequest, target: Target, kind: Kind) -> web.StreamResponse:
        params, accept, clock = request.query, request.headers.get("Accept", ""), self._objects.clock
        if not kind.stored:
            raise method_not_allowed()
        if target.subresource:
            entry = self._objects.find(kind, target.namespace, target.name)
            return _response(request, _subresource(kind, target, entry), _JSON)
        if query.boolean(params, "watch"):
            return await self._watches.serve(request, kind, target)
        if target.name:
            query.require_known_version(query.resource_version(params), self._objects.store.version)
            entry = self._objects.find(kind, target.namespace, target.name)
            return _response(request, responses.render(kind, entry, accept, params, clock), _JSON)
        body = responses.render_list(self._objects.store, kind, target.namespace, params, accept, clock)
        return _response(request, body, _JSON)


def _subresource(kind: Kind, target: Target, entry: Entry) -> bytes:
    if target.subresource == "status" and kind.status:
        return encode_object(kind, entry)
    if target.subresource == "scale" and kind.scale is not None:
        return encode(get_scale(kind, convert(kind, entry.object)))
    if target.subresource == "ephemeralcontainers" and target.subresource in kind.extra_subresources:
        return encode_object(kind, entry)
    raise no_such_resource()


def _page_not_found() -> web.Response:
    return web.Response(status=404, text="404 page not found\n")


def _error_response(error: ApiError) -> web.Response:
    headers = {**_JSON, "Retry-After": "1"} if error.code == 429 else _JSON
    return web.Response(status=error.code, body=encode(error.wire()), headers=headers)


def _response(request: web.BaseRequest, body: bytes, headers: Mapping[str, str]) -> web.Response:
    """Return a response, compressed if it is large and the client accepts gzip."""
    if len(body) < _MIN_COMPRESSED_BYTES or "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=body, headers=headers)
    gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
    compressed = gzip.compress(body) + gzip.flush()
    return web.Response(body=compressed, headers={**headers, "Content-Encoding": "gzip"})
