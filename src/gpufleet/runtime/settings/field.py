"""One setting: its default, what it is for, where it may come from and what it takes.

A group of settings is a frozen dataclass whose fields are made by `setting(...)`. All that
the command line, the environment, the file and the reference page need to know of a
setting stands in that one call.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a setting beside its name, type and default."""

    help: str
    flag: str | None
    env: tuple[str, ...]
    unit: str
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    secret: bool


def setting(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    env: Sequence[str] = (),
    unit: str = "",
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:
    """Declare a setting.

    `flag` replaces the flag made of group and name; `env` are further variables that are
    read beside `GPUFLEET_<GROUP>_<NAME>`; `unit` "s" makes it a duration ("15s", "5m");
    a `secret` is never shown and takes no flag, since command lines are public.
    """
    facts = Facts(help, flag, tuple(env), unit, tuple(choices), minimum, maximum, secret)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"facts": facts})
    return dataclasses.field(default=default, metadata={"facts": facts})


@dataclasses.dataclass(frozen=True)
class Setting:
    """A declared setting with the names by which each source knows it."""

    group: str
    name: str
    type: Any
    default: Any
    facts: Facts

    @property
    def key(self) -> str:
        """The name in messages and, with the group as table, in the file: `server.port`."""
        return f"{self.group}.{self.name}"

    @property
    def flag(self) -> str | None:
        """The command-line flag, or None for a secret."""
        if self.facts.secret:
            return None
        return self.facts.flag or f"--{self.group}-{self.name}".replace("_", "-")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that are read, the most specific first."""
        return (f"GPUFLEET_{self.group}_{self.name}".upper(), *self.facts.env)


def settings_of(group: str, cls: type) -> list[Setting]:
    """The settings that a group declares, in order."""
    hints = {field.name: field.type for field in dataclasses.fields(cls)}
    return [
        Setting(group, field.name, hints[field.name], _default(field), field.metadata["facts"])
        for field in dataclasses.fields(cls)
    ]


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
