"""How a route is declared: `@get("/api/…")` over a function from typed input to plain data.

    class Asked(msgspec.Struct, rename="camel"):
        page_num: Annotated[int, Meta(ge=1, description="Page number.")] = 1

    def cluster_routes(fleet: Fleet) -> list[Route]:
        @get("/api/clusters/{name:str}/nodes", example=[...])
        async def nodes(name: str, query: Asked) -> list[Node]:
            \"\"\"The first line becomes the summary in /openapi.json.\"\"\"
            return fleet.nodes(name, query.page_num)

        return [nodes]

Parameters are matched by name: `query` (a struct, see `gpufleet.server.http.query`), `body` (any type that
msgspec decodes from JSON), `call` (the request's `Call`), and those in the path. The result is plain
data, an `Answer`, a `Prepared`, or a response of Litestar's own where there is no envelope to put
it in (a stream of events). Raise the errors of `gpufleet.errors`; everything else is done here.
"""

import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from litestar import Request, Response
from litestar.exceptions import InternalServerException
from litestar.handlers import HTTPRouteHandler
from litestar.types import HTTPScope, Method

from gpufleet.errors import InvalidRequest
from gpufleet.server.http.answers import Answer, Prepared, Raw
from gpufleet.server.http.errors import Problem
from gpufleet.server.http.query import QueryReader, pairs, warnings_about
from gpufleet.server.http.replies import Reply
from gpufleet.server.http.request_context import call_of

Route = HTTPRouteHandler
Handler = Callable[..., Awaitable[Any]]
Answering = Callable[[HTTPScope, Request[Any, Any, Any] | None], Awaitable[Reply]]
Wrap = Callable[[Handler], Route]
_PATH_PARAMETER = re.compile(r"\{(\w+):(\w+)\}")


@dataclass(frozen=True)
class Declaration:
    """What is known of a route: everything that `/openapi.json` says comes from here."""

    method: str
    path: str
    handler: Handler
    query: QueryReader[Any] | None
    body: Any
    data: Any
    """The type of the data in the envelope; None for a route that answers without one."""
    example: Any
    body_example: Any
    media_type: str
    texts: tuple[str, ...]
    """Further media types that the data comes in, if a parameter asks for them."""
    status: int
    hidden: bool
    streams: bool
    """Whether it answers with a response of Litestar's own."""

    @property
    def path_parameters(self) -> list[tuple[str, str]]:
        """Names and types in the path: `("uid", "str")`."""
        return _PATH_PARAMETER.findall(self.path)

    @property
    def template(self) -> str:
        """The path as OpenAPI and the metrics write it: `/api/workloads/{uid}`."""
        return _PATH_PARAMETER.sub(r"{\1}", self.path)


def get(
    path: str,
    *,
    example: Any = None,
    media_type: str = "application/json",
    texts: tuple[str, ...] = (),
    hidden: bool = False,
) -> Wrap:
    """Declare what answers GET (and HEAD) on `path`; viewers may call it. `texts`: media types it also comes in."""
    return _declare("GET", path, example, None, media_type, 200, hidden, texts)


def post(path: str, *, example: Any = None, body_example: Any = None, status: int = 200) -> Wrap:
    """Declare what answers POST on `path`; operators may call it."""
    return _declare("POST", path, example, body_example, "application/json", status, False)


def put(path: str, *, example: Any = None, body_example: Any = None) -> Wrap:
    """Declare what answers PUT on `path`; operators may call it."""
    return _declare("PUT", path, example, body_example, "application/json", 200, False)


def delete(path: str, *, example: Any = None) -> Wrap:
    """Declare what answers DELETE on `path`; operators may call it."""
    return _declare("DELETE", path, example, None, "application/json", 200, False)


def route_of(handler: Route) -> Declaration | None:
    """The route that was declared with `handler`; None for one that Litestar made."""
    return cast(Declaration | None, handler.opt.get("route"))


def _declare(
    method: str,
    path: str,
    example: Any,
    body_example: Any,
    media_type: str,
    status: int,
    hidden: bool,
    texts: tuple[str, ...] = (),
) -> Wrap:
    def wrap(handler: Handler) -> Route:
        hints = typing.get_type_hints(handler, include_extras=True)
        returned = hints.get("return", Any)
        query = QueryReader(hints["query"]) if "query" in hints else None
        route = Declaration(
            method=method,
            path=path,
            handler=handler,
            query=query,
            body=hints.get("body"),
            data=_data_type(returned),
            example=example,
            body_example=body_example,
            media_type=media_type,
            texts=texts,
            status=status,
            hidden=hidden,
            streams=isinstance(returned, type) and issubclass(returned, Response),
        )
        methods = cast("list[Method]", ["GET", "HEAD"] if method == "GET" else [method])
        answer = _answering(route)

        async def from_litestar(request: Request[Any, Any, Any]) -> Reply:
            return await answer(request.scope, request)

        from_litestar.__name__ = from_litestar.__qualname__ = handler.__name__
        return Route(
            path,
            http_method=methods,
            opt={"route": route, "answer": answer},
            status_code=status,
            include_in_schema=False,
        )(from_litestar)

    return wrap


def direct_answers(handlers: Iterable[Route]) -> dict[str, Answering]:
    """What answers GET on paths without parameters, by path.

    The edge calls these itself: one look in a dictionary is all the routing they need, and they
    are the paths that are asked all the time.
    """
    found: dict[str, Answering] = {}
    for handler in handlers:
        route = route_of(handler)
        if route and route.method == "GET" and not route.path_parameters and not route.streams:
            found[route.path] = handler.opt["answer"]
    return found


def _answering(route: Declaration) -> Answering:
    """The function that reads what is declared, calls the handler and wraps the result."""
    wanted = set(inspect.signature(route.handler).parameters)
    in_path = [name for name, _ in route.path_parameters]
    _refuse_unfillable(route, wanted, in_path)
    decoder = msgspec.json.Decoder(route.body) if route.body is not None else None
    handler, query, takes_call = route.handler, route.query, "context" in wanted
    known = list(query.fields) if query else []

    async def answer(scope: HTTPScope, request: Request[Any, Any, Any] | None) -> Reply:
        call = call_of(scope)
        given: dict[str, Any] = {name: scope["path_params"][name] for name in in_path} if in_path else {}
        query_string = scope["query_string"]
        if query is not None:
            given["query"], unknown = query.read(query_string)
        else:
            unknown = [name for name, _ in pairs(query_string)] if query_string else []
        if unknown:
            call.headers += [(b"warning", text) for text in warnings_about(unknown, known)]
        if decoder is not None and request is not None:
            given["body"] = await _body(request, decoder)
        if takes_call:
            given["context"] = call
        result = await handler(**given)
        if request is not None and isinstance(result, Response):
            without_body = scope["method"] == "HEAD"
            made = result.to_asgi_response(app=None, request=request, is_head_response=without_body)
            return cast(Reply, made)
        return Reply(result, route.status)

    return answer


def _refuse_unfillable(route: Declaration, wanted: set[str], in_path: list[str]) -> None:
    strangers = wanted - {"query", "body", "context", *in_path}
    if strangers:
        raise TypeError(f"{route.method} {route.path}: nothing fills {', '.join(sorted(strangers))}")


async def _body(request: Request[Any, Any, Any], decoder: "msgspec.json.Decoder[Any]") -> Any:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise Problem(415, f"the body is {media_type or 'of no type'}; this path takes application/json")
    try:
        return decoder.decode(await request.body())
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"body: {error}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not valid JSON: a text in it is not UTF-8") from None
    except InternalServerException:  # Litestar's word for it; nobody is left to answer, and nothing broke
        raise Problem(400, "the caller went away before its body was complete") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def _data_type(hint: Any) -> Any:
    """The type of the data, out of `Answer[T]`, `Prepared[T]`, or a union of both."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = {_data_type(each) for each in typing.get_args(hint) if each is not Raw}
        if len(inner) == 1:
            return inner.pop()
    if typing.get_origin(hint) in (Answer, Prepared):
        return typing.get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, Raw | Response):
        return None
    return hint
