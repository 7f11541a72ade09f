"""The user and the options of a write."""

from dataclasses import dataclass, field

from kubelite.json import Json


@dataclass(frozen=True)
class User:
    """An authenticated user."""

    name: str = "kubelite-admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")
    uid: str = ""

    def wire(self) -> Json:
        """Return the user as a `UserInfo` object."""
        info: Json = {"username": self.name, "groups": list(self.groups)}
        return {**info, "uid": self.uid} if self.uid else info


@dataclass(frozen=True)
class WriteContext:
    """The user and options of a write, and the warnings to return with it."""

    user: User = field(default_factory=User)
    manager: str = "unknown"
    dry_run: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)
