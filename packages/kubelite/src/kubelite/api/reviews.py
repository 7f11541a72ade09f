"""TokenReview and the access reviews.

kubelite authenticates users by their tokens, and authorizes everything. The reviews
report exactly that.
"""

from collections.abc import Mapping

from kubelite.json import Json
from kubelite.objects.context import User

_REASON = "kubelite authorizes every request"


def answer_review(kind: str, body: Json, user: User, users: Mapping[str, User]) -> Json:
    """Return a review with its status."""
    spec = body.get("spec") or {}
    match kind:
        case "TokenReview":
            owner = users.get(str(spec.get("token", "")))
            status: Json = (
                {"authenticated": True, "user": owner.wire()}
                if owner
                else {"user": {}, "error": "unknown token"}
            )
        case "SelfSubjectReview":
            status = {"userInfo": user.wire()}
        case "SelfSubjectRulesReview":
            resources = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            paths = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            status = {"resourceRules": [resources], "nonResourceRules": [paths], "incomplete": False}
        case _:
            status = {"allowed": True, "reason": _REASON}
    return {**body, "metadata": body.get("metadata") or {}, "status": status}
