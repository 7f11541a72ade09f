"""Reviews: questions that are answered, not stored.

Who a token belongs to is known; what a user may do is not restricted: kubelite authenticates,
where tokens are set, but authorizes everything. Its reviews say exactly that.
"""

from collections.abc import Mapping

from kubelite.json import Json
from kubelite.objects.context import User

_REASON = "kubelite allows everything to everyone who may connect"


def answer_review(kind: str, body: Json, asker: User, users: Mapping[str, User]) -> Json:
    """The review with its status filled in."""
    spec = body.get("spec") or {}
    match kind:
        case "TokenReview":
            user = users.get(str(spec.get("token", "")))
            status: Json = (
                {"authenticated": True, "user": user.wire()}
                if user
                else {"user": {}, "error": "the token is not known here"}
            )
        case "SelfSubjectReview":
            status = {"userInfo": asker.wire()}
        case "SelfSubjectRulesReview":
            resources = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            paths = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            status = {"resourceRules": [resources], "nonResourceRules": [paths], "incomplete": False}
        case _:
            status = {"allowed": True, "reason": _REASON}
    return {**body, "metadata": body.get("metadata") or {}, "status": status}
