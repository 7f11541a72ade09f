"""What a caller may do, by the groups of an identity provider or of Kubernetes.

A caller in several groups gets the most that one of them gives: operator, viewer of everything, or viewer of
the namespaces of all its groups. Operators are never limited to namespaces.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException

from gpufleet.runtime.settings import AuthSettings
from gpufleet.server.auth.caller import Role


@dataclass(frozen=True)
class Permission:
    """A role, and for a viewer the namespaces that it is limited to; None for all."""

    role: Role
    namespaces: frozenset[str] | None = None


OPERATOR = Permission("operator")
VIEWER = Permission("viewer")


class LoginRefused(HTTPException):
    """A caller whose credentials are refused (401), or who is known but has no permission (403)."""

    def __init__(self, status: int, sentence: str, *, who: str = "", detail: str = "") -> None:
        """`who` is the name of the caller for the audit log, if it is known."""
        challenge = 'Bearer realm="gpufleet"' + (f", {detail}" if detail else "")
        super().__init__(status, sentence, {"www-authenticate": challenge})
        self.who = who


@dataclass(frozen=True)
class GroupPermissions:
    """The permissions that the settings give to groups."""

    operators: frozenset[str] = frozenset()
    viewers: frozenset[str] = frozenset()
    namespaces: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The namespaces that the members of a group may see."""

    @classmethod
    def from_settings(cls, settings: AuthSettings) -> "GroupPermissions":
        """Return the permissions in the settings."""
        return cls(
            frozenset(settings.operator_groups), frozenset(settings.viewer_groups), settings.group_namespaces
        )

    @property
    def known_groups(self) -> frozenset[str]:
        """Every group that has a permission."""
        return self.operators | self.viewers | frozenset(self.namespaces)

    def of(self, groups: Collection[str]) -> Permission | None:
        """Return the permission of a caller with these groups; None without any."""
        if not self.operators.isdisjoint(groups):
            return OPERATOR
        if not self.viewers.isdisjoint(groups):
            return VIEWER
        visible = frozenset(name for group in groups for name in self.namespaces.get(group, ()))
        return Permission("viewer", visible) if visible else None
