"""`/auth/*`: who the caller is, and sign-in and sign-out of the page with OIDC."""

import html
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from gpufleet.errors import Unavailable
from gpufleet.server.auth.caller import Caller, Login, Role
from gpufleet.server.auth.gate import CALLBACK, LOGIN, LOGOUT, ME
from gpufleet.server.auth.oidc.sign_in import SignIn
from gpufleet.server.auth.permissions import LoginRefused
from gpufleet.server.http.answers import Answer
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get, post

SignInWay = Literal["none", "token", "oidc"]
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


class Me(msgspec.Struct, rename="camel"):
    """The caller; all fields but the last are null without a login."""

    user: str | None
    role: Role | None
    namespaces: list[str] | None
    """The namespaces that the caller is limited to; null for all."""
    login: Login | None
    """How the caller logged in."""
    sign_in: SignInWay
    """How to log in: not at all, with a token, or also with OIDC at `/auth/login`."""


class LoginParams(msgspec.Struct):
    """The page to return to after the sign-in."""

    page: Annotated[str, Meta(max_length=1024, description="Fragment of the page, such as #/nodes.")] = ""


class CallbackParams(msgspec.Struct):
    """The answer of the identity provider."""

    code: Annotated[str, Meta(max_length=4096)] = ""
    state: Annotated[str, Meta(max_length=256)] = ""
    iss: Annotated[str, Meta(max_length=1024)] = ""
    error: Annotated[str, Meta(max_length=256)] = ""


def auth_routes(*, login: bool, sign_in: SignIn | None) -> list[Route]:
    """Return the routes for the login."""
    way: SignInWay = "oidc" if sign_in is not None else "token" if login else "none"

    @get(ME, scope="public", example=Me("alice@example.com", "viewer", ["nlp"], "session", "oidc"))
    async def me(context: RequestContext) -> Answer[Me]:
        """The caller, its role and its namespaces. Answers callers without a login too."""
        caller = context.caller
        shown = Me(None, None, None, None, way)
        if caller is not None:
            namespaces = None if caller.namespaces is None else sorted(caller.namespaces)
            shown = Me(caller.name, caller.role, namespaces, caller.login, way)
        return Answer(shown, headers={"cache-control": "no-store", "vary": "authorization, cookie"})

    return [me] if sign_in is None else [me, *_sign_in_routes(sign_in)]


def _sign_in_routes(sign_in: SignIn) -> list[Route]:
    @get(LOGIN, scope="public", hidden=True)
    async def begin(query: LoginParams) -> Response:
        """Send the browser to the identity provider."""
        try:
            location, cookie = await sign_in.begin(query.page)
        except Unavailable as error:
            return _problem(503, f"the identity provider can't be used: {error}", sign_in)
        return _redirect(location, cookie)

    @get(CALLBACK, scope="public", hidden=True)
    async def callback(query: CallbackParams, context: RequestContext) -> Response:
        """Begin a session with the answer of the identity provider."""
        context.signed_in = True
        try:
            if query.error or not query.code:
                raise LoginRefused(
                    401, f"the identity provider refused the sign-in: {query.error or 'no code'}"
                )
            cookie = context.headers.get(b"cookie")
            done = await sign_in.finish(query.code, query.state, query.iss, cookie)
        except HTTPException as error:
            context.login_error = error
            return _problem(error.status_code, error.detail, sign_in)
        except Unavailable as error:
            context.login_error = HTTPException(503, str(error))
            return _problem(503, f"the identity provider can't be used: {error}", sign_in)
        context.caller = Caller(done.identity.name, "viewer", "session")  # for the log
        return _redirect(done.page, *done.cookies)

    @post(LOGOUT, scope="public")
    async def end() -> Response:
        """End the session of the page."""
        return _with_cookies(
            Response(status_code=204, headers={"cache-control": "no-store"}), sign_in.sessions.end()
        )

    end.include_in_schema = False
    return [begin, callback, end]


def _redirect(location: str, *cookies: str) -> Response:
    return _with_cookies(RedirectResponse(location, 302, _HEADERS), *cookies)


def _problem(status: int, sentence: str, sign_in: SignIn) -> Response:
    """Return a page that says why a sign-in failed; it also ends the sign-in, whose code is of no use any more."""
    page = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>gpufleet</title>\n'
        f"<h1>You are not signed in</h1>\n<p>{html.escape(sentence)}</p>\n"
        f'<p><a href="{html.escape(sign_in.home)}">Back to gpufleet</a></p>\n</html>\n'
    )
    return _with_cookies(Response(page, status, _HEADERS, "text/html"), sign_in.forget())


def _with_cookies(response: Response, *cookies: str) -> Response:
    for cookie in cookies:
        response.headers.append("set-cookie", cookie)
    return response
