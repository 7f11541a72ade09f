"""Who writes, and with which options."""

from dataclasses import dataclass, field

from kubelite.json import Json


@dataclass(frozen=True)
class User:
    """Who asks."""

    name: str = "kubelite-admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")
    uid: str = ""

    def wire(self) -> Json:
        """As reviews show it."""
        info: Json = {"username": self.name, "groups": list(self.groups)}
        return {**info, "uid": self.uid} if self.uid else info


@dataclass(frozen=True)
class Asking:
    """The options of a write that are the same for all verbs; warnings collect what to tell."""

    user: User = field(default_factory=User)
    manager: str = "unknown"
    dry_run: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)
