"""Sign in at an OpenID Connect provider: the authorization code flow with PKCE, state and nonce.

`begin` sends the browser to the provider and keeps three secrets in a signed cookie. `finish` accepts the code
that the browser brings back only with that cookie: `state` ties the answer to the browser that began, `nonce`
the ID token to this sign-in, and the PKCE verifier the code to this server.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from urllib.parse import urlencode

from gpufleet.runtime.settings import OidcSettings
from gpufleet.server.auth.oidc.provider import Provider
from gpufleet.server.auth.oidc.sessions import SIGN_IN, SIGN_IN_SECONDS, Sessions, SignedCookies
from gpufleet.server.auth.oidc.tokens import Identity, IdentityTokens
from gpufleet.server.auth.permissions import LoginRefused

_MAX_NEXT = 1024


@dataclass(frozen=True)
class SignedIn:
    """A successful sign-in."""

    identity: Identity
    page: str
    """The URL to go on with."""
    cookies: tuple[str, ...]
    """`Set-Cookie` headers."""


class SignIn:
    """Signs people in."""

    def __init__(
        self,
        provider: Provider,
        tokens: IdentityTokens,
        sessions: Sessions,
        cookies: SignedCookies,
        settings: OidcSettings,
    ) -> None:
        self._provider = provider
        self._tokens = tokens
        self.sessions = sessions
        self._cookies = cookies
        self._settings = settings

    @property
    def home(self) -> str:
        """The URL of the page."""
        return self._settings.redirect_url.removesuffix("auth/callback")

    async def begin(self, page: str) -> tuple[str, str]:
        """Return the provider's URL to send the browser to, and a `Set-Cookie` header.

        `page` is the fragment of the page to return to; anything else is ignored, so that a link can't lead
        to another site.
        """
        metadata = await self._provider.metadata()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._settings.client_id,
                "redirect_uri": self._settings.redirect_url,
                "scope": " ".join(self._settings.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge.decode(),
                "code_challenge_method": "S256",
            }
        )
        is_fragment = page.startswith("#/") and len(page) <= _MAX_NEXT
        content = {"state": state, "nonce": nonce, "verifier": verifier, "page": page if is_fragment else ""}
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        location = f"{metadata.authorization_endpoint}{separator}{query}"
        return location, self._cookies.set(SIGN_IN, content, SIGN_IN_SECONDS)

    async def finish(self, code: str, state: str, issuer: str, cookie: bytes | None) -> SignedIn:
        """Redeem the code that a browser brought back; raise LoginRefused if anything does not fit."""
        begun = self._cookies.get(SIGN_IN, cookie)
        if begun is None:
            raise LoginRefused(401, "this sign-in was not begun in this browser, or it took too long")
        if not hmac.compare_digest(begun["state"].encode(), state.encode()):
            raise LoginRefused(401, "the answer belongs to another sign-in (state)")
        if issuer and issuer != self._settings.issuer:
            raise LoginRefused(401, "the answer is of another identity provider (iss)")
        token = await self._provider.redeem(code, begun["verifier"])
        claims = await self._tokens.claims(token, [self._settings.client_id])
        if not hmac.compare_digest(begun["nonce"].encode(), str(claims.get("nonce", "")).encode()):
            raise LoginRefused(401, "the ID token belongs to another sign-in (nonce)")
        if claims.get("azp", self._settings.client_id) != self._settings.client_id:
            raise LoginRefused(401, "the ID token was issued to another client (azp)")
        identity = self._tokens.identity(claims)
        self._tokens.permission(identity)
        cookies = (self.sessions.begin(identity), self.forget())
        return SignedIn(identity, self.home + begun["page"], cookies)

    def forget(self) -> str:
        """Return the `Set-Cookie` header that ends a sign-in in progress."""
        return self._cookies.delete(SIGN_IN)
