"""Serve health, version, discovery and OpenAPI documents."""

from kubelite.api import query
from kubelite.discovery import resources as discovery
from kubelite.discovery.openapi import OpenApi
from kubelite.json import Json, encode
from kubelite.kinds import Registry

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3+kubelite",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "any/any",
}


class Documents:
    """The documents for the kinds of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._openapi = OpenApi(registry)

    def find(self, path: str, accept: str, host: str) -> tuple[bytes, str] | None:
        """Return the document at a path and its content type, or None."""
        plain = "application/json"
        if path in ("/healthz", "/livez", "/readyz"):
            return b"ok", "text/plain; charset=utf-8"
        if path in ("/api", "/apis"):
            if query.accepts(accept, "APIGroupDiscoveryList"):
                content = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                return encode(discovery.aggregated(self._registry, core=path == "/api")), content
            legacy = discovery.core_versions(host) if path == "/api" else discovery.group_list(self._registry)
            return encode(legacy), plain
        if path == "/version":
            return encode(VERSION), plain
        if path == "/openapi/v3":
            return self._openapi.index(), plain
        if path.startswith("/openapi/v3/"):
            return self._openapi_document(path.removeprefix("/openapi/v3/").split("/"))
        parts = path.strip("/").split("/")
        found: Json | None = None
        if parts[0] == "api" and len(parts) == 2:
            found = discovery.resource_list(self._registry, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resource_list(self._registry, parts[1], parts[2])
        elif parts[0] == "apis" and len(parts) == 2:
            found = discovery.group(self._registry, parts[1])
        return None if found is None else (encode(found), plain)

    def _openapi_document(self, parts: list[str]) -> tuple[bytes, str] | None:
        if len(parts) not in (2, 3):
            return None
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[-1])
        document = self._openapi.document(group, version)
        return None if document is None else (document, "application/json")
