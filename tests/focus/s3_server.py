"""An S3-compatible server that checks the signature of every PUT, as AWS documents it."""

import hashlib
import hmac
import re
from dataclasses import dataclass, field

from aiohttp import web

SECRETS = {"AKID": "secret"}


@dataclass
class S3Server:
    objects: dict[str, bytes] = field(default_factory=dict)
    media_types: dict[str, str] = field(default_factory=dict)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_put("/{path:.*}", self._put)
        return app

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.read()
        if problem := _problem(request, body):
            return web.Response(status=403, text=f"<Error><Code>{problem}</Code></Error>")
        path = request.match_info["path"]
        if path.startswith("absent/"):
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        self.objects[path] = body
        self.media_types[path] = request.content_type
        return web.Response()


def _problem(request: web.Request, body: bytes) -> str:
    """Return the error code for a request that is not signed correctly."""
    found = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8})/([\w-]+)/s3/aws4_request,SignedHeaders=([\w;-]+),Signature=(\w{64})",
        request.headers.get("authorization", ""),
    )
    if not found:
        return "AuthorizationHeaderMalformed"
    key_id, date, region, names, signature = found.groups()
    if key_id not in SECRETS:
        return "InvalidAccessKeyId"
    if request.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
        return "XAmzContentSHA256Mismatch"
    required = {"host"} | {name.lower() for name in request.headers if name.lower().startswith("x-amz-")}
    if not required <= set(names.split(";")):
        return "AccessDenied"
    canonical_headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names.split(";"))
    canonical = (
        f"PUT\n{request.raw_path}\n\n{canonical_headers}\n{names}\n{request.headers['x-amz-content-sha256']}"
    )
    scope = f"{date}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{request.headers['x-amz-date']}\n{scope}\n{_hex(canonical)}"
    key = b"AWS4" + SECRETS[key_id].encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return "" if hmac.compare_digest(expected, signature) else "SignatureDoesNotMatch"


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
