"""Which kinds the server has, asked per group and version and remembered for a while.

Owners of pods may be of any kind; this finds where their objects are, so that their
metadata, or a few fields more, can be read without a type for each kind.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import ObjectNotFound, Status
from gpufleet.kubernetes.client.resources import Resource, T

REMEMBERED = 600.0
"""Seconds for which an answer is trusted."""
MISSING = 1.0
"""The same for a kind that was not in it: an operator may just be installing its kinds. Who asks must not do so often."""


class ApiResource(msgspec.Struct, frozen=True):
    """A kind, as discovery describes it."""

    name: str
    kind: str
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Answer:
    kinds: dict[str, ApiResource]
    asked_at: float


class Discovery:
    """Finds resources by `apiVersion` and `kind`, as owner references and manifests name them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._answers: dict[str, _Answer] = {}

    async def find(self, api_version: str, kind: str, type: type[T]) -> Resource[T]:
        """Where objects of that kind are, to be decoded as `type`; `ObjectNotFound` if the server has none."""
        answer = await self._kinds(api_version, fresh=REMEMBERED)
        if kind not in answer:
            answer = await self._kinds(api_version, fresh=MISSING)
        if kind not in answer:
            message = f"the server has no kind {kind} in {api_version}"
            raise ObjectNotFound(message, Status(code=404, reason="NotFound", message=message))
        found = answer[kind]
        group, _, version = api_version.rpartition("/")
        return Resource(group, version, found.name, kind, type, namespaced=found.namespaced)

    async def _kinds(self, api_version: str, fresh: float) -> dict[str, ApiResource]:
        now = self._client.timing.monotonic()
        known = self._answers.get(api_version)
        if known is None or now - known.asked_at >= fresh:
            known = self._answers[api_version] = _Answer(await self._ask(api_version), now)
        return known.kinds

    async def _ask(self, api_version: str) -> dict[str, ApiResource]:
        try:
            answer: Any = await self._client.read_json(
                f"/{'apis' if '/' in api_version else 'api'}/{api_version}"
            )
        except ObjectNotFound:
            return {}
        entries = msgspec.convert(answer.get("resources") or [], list[ApiResource], strict=False)
        # Subresources (pods/status) share their parent's kind or have one that is no object's.
        return {entry.kind: entry for entry in entries if "/" not in entry.name}
