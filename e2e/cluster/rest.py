"""The few calls that the harness itself makes to the API server, and tests that want no client in between.

The standard library, on purpose: a test of gpufleet's own client needs a witness that shares no code with it.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from e2e.cluster.errors import RequestFailed
from e2e.cluster.identity import Identity

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Rest:
    """Asks the API server as one identity."""

    def __init__(self, identity: Identity, timeout: float = 30) -> None:
        self._address = urlsplit(identity.url).netloc
        self._headers = identity.headers()
        self._context = identity.ssl_context()
        self._timeout = timeout

    def get(self, path: str) -> Any:
        """An object, or a list of them."""
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to a collection."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Any, kind: str = MERGE_PATCH) -> Any:
        """PATCH, by default as a merge patch."""
        return self.call("PATCH", path, body, kind)

    def delete(self, path: str, options: Mapping[str, Any] | None = None) -> Any:
        """DELETE, with `DeleteOptions` if there are any."""
        return self.call("DELETE", path, options)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One request; the answer's JSON. A status of 400 and above raises `Refused`."""
        status, text = self.raw(method, path, body, kind)
        if status >= 400:
            raise RequestFailed(method, path, status, text)
        return json.loads(text)

    def raw(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, str]:
        """One request on a connection of its own; the status and the text of the answer."""
        headers = {**self._headers, "Accept": "application/json"}
        payload = None
        if body is not None:
            payload = json.dumps(body)
            headers["Content-Type"] = kind
        connection = http.client.HTTPSConnection(self._address, timeout=self._timeout, context=self._context)
        try:
            connection.request(method, path, payload, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def is_healthy(url: str, context: ssl.SSLContext | None = None, saying: str = "") -> bool:
    """Whether a health endpoint says 200 within two seconds, with the words `saying` in its answer."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=2, context=context)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=2)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return answer.status == 200 and saying in answer.read().decode()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
