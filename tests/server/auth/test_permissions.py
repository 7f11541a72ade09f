"""The permissions of Kubernetes users and of groups."""

from collections.abc import Callable

import pytest
from tests.kubernetes.faulty_server import FaultyServer, status

from gpufleet.errors import KubernetesUnavailable, SettingsError
from gpufleet.kubernetes.access_review import AccessReviews
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.runtime.settings import AuthSettings, load_settings
from gpufleet.server.auth.permissions import OPERATOR, VIEWER, GroupPermissions, Permission
from gpufleet.server.auth.rbac import MAX_NAMESPACES, KubernetesPermissions

ACCOUNT = TokenOwner("system:serviceaccount:nlp:default", ("system:authenticated",))
GROUPS = GroupPermissions(
    frozenset({"admins"}), frozenset({"staff"}), {"nlp": ["nlp", "nlp-dev"], "vision": ["vision"]}
)


class Rbac:
    """Allows the given pairs of verb and namespace, and counts the reviews."""

    def __init__(self, *allowed: tuple[str, str]) -> None:
        self._allowed = allowed
        self.asked: list[tuple[str, str]] = []

    async def allowed(self, _owner: TokenOwner, verb: str, namespace: str = "") -> bool:
        self.asked.append((verb, namespace))
        return (verb, namespace) in self._allowed


def permissions(rbac: Rbac, namespaces: Callable[[], list[str]] = list) -> KubernetesPermissions:
    return KubernetesPermissions(rbac, GROUPS, ("alice", "gpu-admins"), namespaces)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], None),
        (["other"], None),
        (["staff"], VIEWER),
        (["staff", "nlp"], VIEWER),
        (["admins", "nlp"], OPERATOR),
        (["nlp"], Permission("viewer", frozenset({"nlp", "nlp-dev"}))),
        (["nlp", "vision", "other"], Permission("viewer", frozenset({"nlp", "nlp-dev", "vision"}))),
    ],
)
def test_a_caller_gets_the_most_that_one_of_its_groups_gives(
    groups: list[str], expected: Permission | None
) -> None:
    assert GROUPS.of(groups) == expected


def test_the_groups_come_from_the_settings() -> None:
    variables = {
        "GPUFLEET_AUTH_OPERATOR_GROUPS": "admins",
        "GPUFLEET_AUTH_VIEWER_GROUPS": "staff,interns",
        "GPUFLEET_AUTH_GROUP_NAMESPACES": "nlp=nlp, nlp=nlp-dev,cn=vision=vision",
    }
    found = GroupPermissions.from_settings(load_settings({}, variables)[AuthSettings])
    assert found.namespaces == {"nlp": ("nlp", "nlp-dev"), "cn=vision": ("vision",)}
    assert (found.of(["admins"]), found.of(["interns"])) == (OPERATOR, VIEWER)
    assert found.known_groups == {"admins", "staff", "interns", "nlp", "cn=vision"}
    for wrong in ("nlp", "=nlp", "nlp="):
        with pytest.raises(SettingsError, match=r"auth\.group_namespaces"):
            load_settings({}, {"GPUFLEET_AUTH_GROUP_NAMESPACES": wrong})


@pytest.mark.parametrize(
    ("owner", "allowed", "expected"),
    [
        (ACCOUNT, [], None),
        (ACCOUNT, [("get", "")], VIEWER),
        (ACCOUNT, [("get", ""), ("update", "")], OPERATOR),
        (ACCOUNT, [("get", "vision")], Permission("viewer", frozenset({"vision"}))),
        (ACCOUNT, [("update", "vision")], None),
        (TokenOwner("alice"), [], OPERATOR),
        (TokenOwner("bob", ("gpu-admins",)), [], OPERATOR),
        (TokenOwner("bob", ("admins",)), [], OPERATOR),
        (TokenOwner("bob", ("staff",)), [], VIEWER),
        (TokenOwner("bob", ("staff",)), [("update", "")], OPERATOR),
        (
            TokenOwner("bob", ("nlp",)),
            [("get", "vision")],
            Permission("viewer", frozenset({"nlp", "nlp-dev", "vision"})),
        ),
    ],
)
async def test_rbac_and_the_settings_decide_together(
    owner: TokenOwner, allowed: list[tuple[str, str]], expected: Permission | None
) -> None:
    assert await permissions(Rbac(*allowed), lambda: ["vision", "robots"]).of(owner) == expected


async def test_namespaces_are_reviewed_only_without_a_permission_for_all_and_up_to_a_limit() -> None:
    many = [f"ns-{number}" for number in range(3 * MAX_NAMESPACES)]
    everywhere, nowhere = Rbac(("get", "")), Rbac(("get", "ns-1"))
    await permissions(everywhere, lambda: many).of(ACCOUNT)
    assert everywhere.asked == [("update", ""), ("get", "")]
    found = await permissions(nowhere, lambda: many).of(ACCOUNT)
    assert found == Permission("viewer", frozenset({"ns-1"}))
    assert len(nowhere.asked) == 2 + MAX_NAMESPACES
    assert ("get", "nlp") in nowhere.asked, "the namespace of the service account"


def test_a_refusal_says_which_binding_to_make() -> None:
    rbac = permissions(Rbac())
    assert (
        "kubectl create clusterrolebinding NAME --clusterrole=gpufleet-viewer --serviceaccount=nlp:default"
        in (rbac.advice(ACCOUNT))
    )
    assert "kubectl create rolebinding NAME -n NAMESPACE --clusterrole=gpufleet-viewer --user=bob" in (
        rbac.advice(TokenOwner("bob"))
    )


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_a_server_without_the_right_to_review_access_does_not_blame_the_caller(code: int) -> None:
    server = FaultyServer()
    server.refuse = lambda request: status(code, "system:serviceaccount:gpufleet:server cannot create")
    async with server.serving(), server.client() as client:
        with pytest.raises(KubernetesUnavailable) as refusal:
            await AccessReviews(client).allowed(ACCOUNT, "get")
    assert "serviceaccount" not in str(refusal.value)
