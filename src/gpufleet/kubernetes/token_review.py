"""Ask Kubernetes whom a bearer token belongs to (`authentication.k8s.io/v1` TokenReview)."""

from dataclasses import dataclass

import msgspec

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import KubernetesRefused
from gpufleet.runtime.logs import get_logger

_log = get_logger("auth")
_POD = "authentication.kubernetes.io/pod-uid"
_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(frozen=True)
class Reviewed:
    """The owner of a token, as Kubernetes knows them."""

    user: str
    groups: tuple[str, ...] = ()
    pod_uid: str = ""
    """The pod that a service account's token was made for; empty for any other token."""


class _User(msgspec.Struct):
    username: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class TokenReviews:
    """Reviews tokens through one client, whose identity needs the right to create TokenReviews."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str) -> Reviewed | None:
        """The owner of `token`, or None if Kubernetes does not know it."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        try:
            status = msgspec.convert(await self._client.write_json("POST", _PATH, asked), _Review).status
        except KubernetesRefused as error:
            # Its words name our own identity, which is nothing for a stranger's eyes.
            _log.error(
                "Kubernetes reviews no tokens for this server, which needs that right", reason=str(error)
            )
            raise KubernetesUnavailable(
                "Kubernetes does not let this server ask whose token that is; its log says why"
            ) from None
        if not status.authenticated or not status.user.username:
            return None
        pod = status.user.extra.get(_POD, [""])
        return Reviewed(status.user.username, tuple(status.user.groups), pod[0] if len(pod) == 1 else "")
