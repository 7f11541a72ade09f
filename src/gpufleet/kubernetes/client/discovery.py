"""Find out which kinds the server has; responses are cached per group and version.

Pods may be owned by objects of any kind. Discovery finds the API path of such a kind, so that its
metadata, or a few more fields, can be read without a type for every kind.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import ObjectNotFound, Status
from gpufleet.kubernetes.client.resources import Resource, T

CACHE_SECONDS = 600.0
"""Seconds for which a response is cached."""
MISSING_CACHE_SECONDS = 1.0
"""The same for a kind that was missing: an operator may be installing its CRDs. Callers must not retry often."""


class ApiResource(msgspec.Struct, frozen=True):
    """A kind, as discovery describes it."""

    name: str
    kind: str
    namespaced: bool = False


@dataclass(frozen=True)
class _CachedKinds:
    kinds: dict[str, ApiResource]
    fetched_at: float


class Discovery:
    """Finds resources by `apiVersion` and `kind`, as in owner references and manifests."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._cached: dict[str, _CachedKinds] = {}

    async def find(self, api_version: str, kind: str, type: type[T]) -> Resource[T]:
        """Return the resource of that kind, decoded as `type`; raise `ObjectNotFound` if the server has none."""
        kinds = await self._kinds(api_version, max_age=CACHE_SECONDS)
        if kind not in kinds:
            kinds = await self._kinds(api_version, max_age=MISSING_CACHE_SECONDS)
        if kind not in kinds:
            message = f"the server has no kind {kind} in {api_version}"
            raise ObjectNotFound(message, Status(code=404, reason="NotFound", message=message))
        found = kinds[kind]
        group, _, version = api_version.rpartition("/")
        return Resource(group, version, found.name, kind, type, namespaced=found.namespaced)

    async def _kinds(self, api_version: str, max_age: float) -> dict[str, ApiResource]:
        now = self._client.timing.monotonic()
        cached = self._cached.get(api_version)
        if cached is None or now - cached.fetched_at >= max_age:
            cached = self._cached[api_version] = _CachedKinds(await self._fetch(api_version), now)
        return cached.kinds

    async def _fetch(self, api_version: str) -> dict[str, ApiResource]:
        try:
            body: Any = await self._client.read_json(
                f"/{'apis' if '/' in api_version else 'api'}/{api_version}"
            )
        except ObjectNotFound:
            return {}
        entries = msgspec.convert(body.get("resources") or [], list[ApiResource], strict=False)
        # Subresources (pods/status) repeat the kind of their parent, or have one without objects.
        return {entry.kind: entry for entry in entries if "/" not in entry.name}
