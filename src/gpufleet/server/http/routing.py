"""Declare routes: `@get("/api/…")` over a function from typed input to plain data.

    class PodParams(msgspec.Struct, rename="camel"):
        page_num: Annotated[int, Meta(ge=1, description="Page number.")] = 1

    def cluster_routes(fleet: Fleet) -> list[Route]:
        @get("/api/clusters/{name:str}/pods", scope="filtered", example=[...])
        async def pods(name: str, query: PodParams, namespaces: Namespaces) -> list[Pod]:
            \"\"\"The first line becomes the summary in /openapi.json.\"\"\"
            return fleet.pods(name, query.page_num, namespaces)

        return [pods]

Arguments are passed by name: `query` (a struct, see `gpufleet.server.http.query`), `body` (any type that
msgspec decodes from JSON), `context` (the `RequestContext`), `namespaces` (those that the caller may see, see
`gpufleet.server.auth.scope`), and the path parameters. The result is plain data, an `Answer`, a `Prepared`, a
`Raw`, or a Starlette response (a stream of events). Raise the errors of `gpufleet.errors`.
"""

import asyncio
import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette import routing
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gpufleet.errors import InvalidRequest
from gpufleet.server.auth.scope import ScopeRule, check_scope, namespaces_of, scope_header
from gpufleet.server.http.answers import Answer, Prepared, Raw
from gpufleet.server.http.query import QueryReader, unknown_parameter_warnings
from gpufleet.server.http.request_context import context_of
from gpufleet.server.http.responses import respond

Handler = Callable[..., Awaitable[Any]]
LARGE_BODY_BYTES = 64 * 1024
"""Larger bodies of a route are decoded one at a time."""


class NoParams(msgspec.Struct):
    """The parameters of a route that takes none."""


class Route(routing.Route):
    """A Starlette route that reads typed input, and knows what /openapi.json says about it."""

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        scope: ScopeRule | None = None,
        example: Any = None,
        body_example: Any = None,
        media_type: str = "application/json",
        extra_media_types: tuple[str, ...] = (),
        hidden: bool = False,
    ) -> None:
        hints = typing.get_type_hints(handler, include_extras=True)
        self.method = method
        self.scope = scope
        """What a caller who is limited to namespaces may see; None is treated as `unscoped`."""
        self.handler = handler
        self.query: QueryReader[Any] = QueryReader(hints.get("query", NoParams))
        self.body = hints.get("body")
        self.data = _data_type(hints.get("return", Any))
        """The type of the data in the envelope; None for a route without an envelope."""
        self.example = example
        self.body_example = body_example
        self.media_type = media_type
        self.extra_media_types = extra_media_types
        super().__init__(
            path, self._answer, methods=[method], name=handler.__name__, include_in_schema=not hidden
        )
        self._arguments = set(inspect.signature(handler).parameters)
        unknown = self._arguments - {"query", "body", "context", "namespaces", *self.param_convertors}
        if unknown:
            raise TypeError(f"{method} {path}: unknown parameters {', '.join(sorted(unknown))}")
        if (scope == "filtered") != ("namespaces" in self._arguments):
            raise TypeError(f"{method} {path}: a filtered route, and no other, takes `namespaces`")
        self._decoder = msgspec.json.Decoder(self.body) if self.body is not None else None
        self._decoding_large = asyncio.Lock()

    async def _answer(self, request: Request) -> Response:
        context = context_of(request.scope)
        check_scope(self.scope, context.caller)
        arguments: dict[str, Any] = dict(request.path_params)
        query, unknown = self.query.read(request.scope["query_string"])
        if unknown:
            warnings = unknown_parameter_warnings(unknown, list(self.query.fields))
            context.response_headers += [(b"warning", warning) for warning in warnings]
        if "query" in self._arguments:
            arguments["query"] = query
        if "context" in self._arguments:
            arguments["context"] = context
        if "namespaces" in self._arguments:
            arguments["namespaces"] = context.scope = namespaces_of(context.caller)
            if context.scope is not None:
                context.response_headers.append(scope_header(context.scope))
        if self.method != "GET":
            check_content_type(request, needed=context.needs_content_type)
        if self._decoder is not None:
            arguments["body"] = await self._decode_body(request, self._decoder)
        result = await self.handler(**arguments)
        return await respond(result, context, head=request.method == "HEAD")

    async def _decode_body(self, request: Request, decoder: "msgspec.json.Decoder[Any]") -> Any:
        try:
            body = await request.body()
        except ClientDisconnect:
            raise InvalidRequest("the client disconnected before the end of the body") from None
        if len(body) <= LARGE_BODY_BYTES:
            return _decode(body, decoder)
        async with self._decoding_large:
            await asyncio.sleep(0)  # let other requests run between two bodies
            return _decode(body, decoder)


def get(
    path: str,
    *,
    scope: ScopeRule | None = None,
    example: Any = None,
    media_type: str = "application/json",
    extra_media_types: tuple[str, ...] = (),
    hidden: bool = False,
) -> Callable[[Handler], Route]:
    """Declare the handler of GET and HEAD on `path`. Viewers may call it.

    `scope` is what callers see who are limited to namespaces. `extra_media_types` are further media types of the response; a `hidden` route is not in /openapi.json.
    """
    return lambda handler: Route(
        "GET",
        path,
        handler,
        scope=scope,
        example=example,
        media_type=media_type,
        extra_media_types=extra_media_types,
        hidden=hidden,
    )


def post(
    path: str, *, scope: ScopeRule | None = None, example: Any = None, body_example: Any = None
) -> Callable[[Handler], Route]:
    """Declare the handler of POST on `path`. Operators may call it."""
    return lambda handler: Route(
        "POST", path, handler, scope=scope, example=example, body_example=body_example
    )


def check_content_type(request: Request, *, needed: bool) -> None:
    """Raise HTTPException unless the body is JSON; `needed` is whether the header must be there."""
    given = request.headers.get("content-type")
    if given is None and needed:
        raise HTTPException(415, "add the header `Content-Type: application/json`")
    media_type = (given or "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPException(415, f"the content type is {media_type!r}; this path takes application/json")


def _decode(body: bytes, decoder: "msgspec.json.Decoder[Any]") -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"body: {error}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not valid JSON: it contains text that is not UTF-8") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def _data_type(hint: Any) -> Any:
    """Return the type of the data in `Answer[T]`, `Prepared[T]`, or a union of them."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = {_data_type(each) for each in typing.get_args(hint) if each is not Raw}
        if len(inner) == 1:
            return inner.pop()
    if typing.get_origin(hint) in (Answer, Prepared):
        return typing.get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, Raw | Response):
        return None
    return hint
