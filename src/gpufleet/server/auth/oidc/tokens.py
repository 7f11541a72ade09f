"""Verify the JWTs of an OpenID Connect provider, and find the caller in their claims.

Signatures are checked with the provider's public keys only: `none` and the HS algorithms, whose key would be
public, are never accepted, and a key counts only for its own type of algorithm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from gpufleet.runtime.settings import OidcSettings
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.oidc.provider import Jwk, Provider
from gpufleet.server.auth.permissions import GroupPermissions, LoginRefused, Permission

_KEY_TYPES = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
_LEEWAY_SECONDS = 30
_MAX_NAME = 256
_REQUIRED = ["iss", "sub", "aud", "exp", "iat"]
_SENTENCES: list[tuple[type[Exception], str]] = [
    (jwt.ExpiredSignatureError, "the token has expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet"),
    (jwt.InvalidAudienceError, "the token is for another audience"),
    (jwt.InvalidIssuerError, "the token is of another issuer"),
    (jwt.MissingRequiredClaimError, "the token lacks a claim that is required"),
]


@dataclass(frozen=True)
class Identity:
    """A person or program that the provider knows."""

    name: str
    groups: tuple[str, ...]


class IdentityTokens:
    """Finds callers by the tokens of a provider."""

    def __init__(self, provider: Provider, settings: OidcSettings, groups: GroupPermissions) -> None:
        self._provider = provider
        self._settings = settings
        self._groups = groups

    def issued(self, token: str) -> bool:
        """Return whether `token` claims to be of this provider; nothing is verified."""
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
        except jwt.PyJWTError:
            return False
        return bool(claims.get("iss") == self._settings.issuer)

    async def caller(self, token: str) -> Caller:
        """Return the caller of a bearer token; raise LoginRefused if it is not valid or gives no permission."""
        audiences = (self._settings.client_id, *self._settings.audiences)
        identity = self.identity(await self.claims(token, audiences))
        given = self.permission(identity)
        return Caller(identity.name, given.role, "oidc", namespaces=given.namespaces)

    def permission(self, identity: Identity) -> Permission:
        """Return the permission of `identity`; raise LoginRefused without one."""
        if (given := self._groups.of(identity.groups)) is not None:
            return given
        claims = ", ".join(self._settings.groups_claim)
        found = (
            "none of your groups is"
            if identity.groups
            else f"the token has no groups (claim {claims}), so none is"
        )
        sentence = (
            f"{identity.name} has no permission here: {found} in auth.viewer_groups, auth.operator_groups or "
            "auth.group_namespaces of the server's settings"
        )
        raise LoginRefused(403, sentence, who=identity.name, detail='error="insufficient_scope"')

    def identity(self, claims: dict[str, Any]) -> Identity:
        """Return the name and the groups in verified claims."""
        unverified = claims.get("email_verified", True) in (False, "false")
        usable = {k: v for k, v in claims.items() if not (k == "email" and unverified)}
        name = usable.get(self._settings.username_claim)
        groups: list[str] = []
        for claim in self._settings.groups_claim:
            value = usable.get(claim)
            values = value if isinstance(value, list) else [value]
            groups += [each for each in values if isinstance(each, str) and each]
        return Identity(str(name or claims["sub"])[:_MAX_NAME], tuple(groups))

    async def claims(self, token: str, audiences: Sequence[str]) -> dict[str, Any]:
        """Return the verified claims of `token`; raise LoginRefused with the reason if it is not valid."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _refused("the token is not a JWT") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in _KEY_TYPES or "crit" in header or not isinstance(kid, str | None):
            raise _refused(f"tokens must be signed with one of {', '.join(_KEY_TYPES)}")
        for key in await self._provider.keys(kid):
            if _fits(key, algorithm):
                try:
                    return self._decoded(token, key, algorithm, audiences)
                except jwt.InvalidSignatureError:
                    continue  # without a key id, another key may fit
        raise _refused("the token's signature is not of a key of the provider")

    def _decoded(self, token: str, key: Jwk, algorithm: str, audiences: Sequence[str]) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                jwt.PyJWK(key, algorithm=algorithm).key,
                algorithms=[algorithm],
                audience=list(audiences),
                issuer=self._settings.issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": _REQUIRED},
            )
        except jwt.InvalidSignatureError:
            raise
        except jwt.PyJWTError as error:
            sentence = next(
                (text for kind, text in _SENTENCES if isinstance(error, kind)), "the token is not valid"
            )
            raise _refused(sentence) from None


def _fits(key: Jwk, algorithm: str) -> bool:
    return (
        key.get("kty") == _KEY_TYPES[algorithm]
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
    )


def _refused(sentence: str) -> LoginRefused:
    return LoginRefused(401, sentence, detail='error="invalid_token"')
