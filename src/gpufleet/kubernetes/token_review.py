"""Ask Kubernetes which user a bearer token belongs to (`authentication.k8s.io/v1` TokenReview)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import KubernetesRefused
from gpufleet.runtime.logs import get_logger

_log = get_logger("auth")
_POD_UID = "authentication.kubernetes.io/pod-uid"
_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


@dataclass(frozen=True)
class TokenOwner:
    """The user that a token authenticates."""

    user: str
    groups: tuple[str, ...] = ()
    pod_uid: str = ""
    """The pod that a service account token was issued for; empty for other tokens."""
    uid: str = ""
    extra: Mapping[str, list[str]] = field(default_factory=dict)


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class TokenReviews:
    """Reviews tokens; the client's identity needs the right to create TokenReviews."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str) -> TokenOwner | None:
        """Return the owner of `token`, or None if Kubernetes does not accept it."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        try:
            status = msgspec.convert(await self._client.write_json("POST", _PATH, body), _Review).status
        except KubernetesRefused as error:
            # The server's message names our own identity: log it, but don't show it to the caller.
            _log.error("token_reviews_forbidden", error=str(error))
            raise KubernetesUnavailable(
                "Kubernetes does not allow this server to review tokens; see the server's log"
            ) from None
        user = status.user
        if not status.authenticated or not user.username:
            return None
        pod = user.extra.get(_POD_UID, [""])
        return TokenOwner(
            user.username, tuple(user.groups), pod[0] if len(pod) == 1 else "", user.uid, user.extra
        )
