"""Ask Kubernetes what the owner of a token may do here (`authorization.k8s.io/v1` SubjectAccessReview).

RBAC decides on verbs of the resource `fleet` of our API group: `get` to read, `update` to operate. There is no
object of that resource; roles name it all the same.
"""

from typing import Literal

import msgspec

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import KubernetesRefused
from gpufleet.kubernetes.crds import GROUP
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.runtime.logs import get_logger

Verb = Literal["get", "update"]
RESOURCE = "fleet"
_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_log = get_logger("auth")


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class AccessReviews:
    """Reviews access; the client's identity needs the right to create SubjectAccessReviews."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def allowed(self, owner: TokenOwner, verb: Verb, namespace: str = "") -> bool:
        """Return whether `owner` may use `verb` on the fleet, in one namespace or (if empty) in all."""
        return await self.allowed_on(owner, verb, GROUP, RESOURCE, namespace)

    async def allowed_on(
        self, owner: TokenOwner, verb: str, group: str, resource: str, namespace: str
    ) -> bool:
        """Return whether `owner` may use `verb` on a resource (such as pods/log) of a namespace."""
        plural, _, subresource = resource.partition("/")
        attributes = {"group": group, "resource": plural, "verb": verb, "namespace": namespace}
        if subresource:
            attributes["subresource"] = subresource
        spec = {
            "user": owner.user,
            "uid": owner.uid,
            "groups": owner.groups,
            "extra": owner.extra,  # limits of the token, such as the scopes of OpenShift
            "resourceAttributes": attributes,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        try:
            answer = await self._client.write_json("POST", _PATH, body)
        except KubernetesRefused as error:
            _log.error("access_reviews_forbidden", error=str(error))
            raise KubernetesUnavailable(
                "Kubernetes does not allow this server to review access; see the server's log"
            ) from None
        return msgspec.convert(answer, _Review).status.allowed
