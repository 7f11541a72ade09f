"""A minimal client for the API server, for the harness and for tests that check results without gpufleet's client.

It uses only the standard library, so that it shares no code with the client under test.
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
    """Calls the API server as one identity."""

    def __init__(self, identity: Identity, timeout: float = 30) -> None:
        self._address = urlsplit(identity.url).netloc
        self._headers = identity.headers()
        self._context = identity.ssl_context()
        self._timeout = timeout

    def get(self, path: str) -> Any:
        """GET an object or a list."""
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to a collection."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Any, kind: str = MERGE_PATCH) -> Any:
        """PATCH, by default as a merge patch."""
        return self.call("PATCH", path, body, kind)

    def delete(self, path: str, options: Mapping[str, Any] | None = None) -> Any:
        """DELETE, with `DeleteOptions` if given."""
        return self.call("DELETE", path, options)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request and return the JSON of the response. Raise `RequestFailed` from status 400."""
        status, text = self.raw(method, path, body, kind)
        if status >= 400:
            raise RequestFailed(method, path, status, text)
        return json.loads(text)

    def raw(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, str]:
        """Send a request on a new connection and return the status and text of the response."""
        headers = {**self._headers, "Accept": "application/json"}
        payload = None
        if body is not None:
            payload = json.dumps(body)
            headers["Content-Type"] = kind
        connection = http.client.HTTPSConnection(self._address, timeout=self._timeout, context=self._context)
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def is_healthy(url: str, context: ssl.SSLContext | None = None, text: str = "") -> bool:
    """Return whether a health endpoint responds 200 within two seconds, with `text` in its body."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=2, context=context)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=2)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        response = connection.getresponse()
        return response.status == 200 and text in response.read().decode()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
