"""A small OpenID Connect provider with real signatures, PKCE, codes for one use, and key rotation."""

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from aiohttp import BasicAuth, web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

CLIENT, SECRET = "gpufleet", "s3cr3t/+ %"
ALICE = {"sub": "0001", "email": "alice@example.com", "email_verified": True, "groups": ["staff", "other"]}


@dataclass(frozen=True)
class Key:
    """A private key, and its public half as the key set shows it."""

    kid: str
    algorithm: str
    private: Any

    @classmethod
    def new(cls, kid: str, algorithm: str = "RS256") -> "Key":
        if algorithm == "ES256":
            return cls(kid, algorithm, ec.generate_private_key(ec.SECP256R1()))
        if algorithm == "EdDSA":
            return cls(kid, algorithm, ed25519.Ed25519PrivateKey.generate())
        return cls(kid, algorithm, rsa.generate_private_key(65537, 2048))

    @property
    def public(self) -> dict[str, Any]:
        kinds: dict[str, Any] = {"ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
        jwk: dict[str, Any] = kinds.get(self.algorithm, RSAAlgorithm).to_jwk(
            self.private.public_key(), as_dict=True
        )
        return {**jwk, "kid": self.kid, "use": "sig"} | (
            {"alg": self.algorithm} if "PS" not in self.algorithm else {}
        )


@dataclass
class Provider:
    """The provider's state, which tests change."""

    keys: list[Key] = field(default_factory=lambda: [Key.new("first")])
    user: dict[str, Any] = field(default_factory=lambda: dict(ALICE))
    changed_claims: dict[str, Any] = field(default_factory=dict)
    """Wrong claims of ID tokens."""
    ask: bool = False
    """Whether /authorize shows a page first, as in reality."""
    public_client: bool = False
    """Whether the client has no secret."""
    issuer: str = ""
    key_reads: int = 0
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def token(self, *, key: Key | None = None, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """Return a token of the user; a claim that is None is left out."""
        key, now = key or self.keys[-1], int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 600, **self.user, **changes}
        given = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(given, key.private, key.algorithm, headers={"kid": key.kid, **(headers or {})})

    def rotate(self, algorithm: str = "RS256") -> None:
        """Replace the keys."""
        self.keys = [Key.new(secrets.token_hex(4), algorithm)]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Provider"]:
        app = web.Application()
        app.add_routes(
            [
                web.get("/realm/.well-known/openid-configuration", self._discovery),
                web.get("/realm/keys", self._key_set),
                web.get("/realm/authorize", self._authorize),
                web.post("/realm/token", self._token),
            ]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}/realm"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _discovery(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def _key_set(self, _request: web.Request) -> web.Response:
        self.key_reads += 1
        return web.json_response({"keys": [key.public for key in self.keys]})

    async def _authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert query["client_id"] == CLIENT
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        if self.ask and "agreed" not in query:
            again = urlencode({**query, "agreed": "1"})
            return web.Response(
                text=f'<a href="authorize?{again}">Sign in as Alice</a>', content_type="text/html"
            )
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        answer = urlencode({"code": code, "state": query["state"], "session_state": "x"})
        raise web.HTTPFound(f"{query['redirect_uri']}?{answer}")

    async def _token(self, request: web.Request) -> web.Response:
        form = dict(parse_qsl(await request.text()))
        begun = self._codes.pop(form["code"], None)  # a code is for one use
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        if not self._knows_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        if (
            begun is None
            or begun["redirect_uri"] != form["redirect_uri"]
            or begun["code_challenge"] != base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        ):
            return web.json_response(
                {"error": "invalid_grant", "error_description": form["code"]}, status=400
            )
        token = self.token(nonce=begun["nonce"], **self.changed_claims)
        return web.json_response({"access_token": "opaque", "token_type": "Bearer", "id_token": token})

    def _knows_client(self, request: web.Request, form: dict[str, str]) -> bool:
        if self.public_client:
            return form["client_id"] == CLIENT and "authorization" not in request.headers
        client = BasicAuth.decode(request.headers["authorization"])
        return client.login == CLIENT and _unquoted(client.password) == SECRET


def _unquoted(text: str) -> str:
    return dict(parse_qsl(f"x={text}", keep_blank_values=True)).get("x", "")


def query_of(url: str) -> dict[str, str]:
    """Return the query of a URL."""
    return dict(parse_qsl(urlsplit(url).query))
