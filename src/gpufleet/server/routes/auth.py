"""`/auth/me`: who the caller is, and how a caller logs in."""

from typing import Literal

import msgspec

from gpufleet.server.auth.caller import Login, Role
from gpufleet.server.auth.gate import ME
from gpufleet.server.http.answers import Answer
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get

SignIn = Literal["none", "token", "oidc"]


class Me(msgspec.Struct, rename="camel"):
    """The caller; all fields but the last are null without a login."""

    user: str | None
    role: Role | None
    namespaces: list[str] | None
    """The namespaces that the caller is limited to; null for all."""
    login: Login | None
    """How the caller logged in."""
    sign_in: SignIn
    """How to log in: not at all, with a token, or also with OIDC at `/auth/login`."""


def auth_routes(sign_in: SignIn) -> list[Route]:
    """Return the routes for the login."""

    @get(ME, example=Me("alice@example.com", "viewer", ["nlp"], "session", "oidc"))
    async def me(context: RequestContext) -> Answer[Me]:
        """The caller, its role and its namespaces. Answers callers without a login too."""
        caller = context.caller
        if caller is None:
            return _private(Me(None, None, None, None, sign_in))
        namespaces = None if caller.namespaces is None else sorted(caller.namespaces)
        return _private(Me(caller.name, caller.role, namespaces, caller.login, sign_in))

    return [me]


def _private(me: Me) -> Answer[Me]:
    return Answer(me, headers={"cache-control": "no-store", "vary": "authorization, cookie"})
