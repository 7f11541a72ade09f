"""Declare a setting: its default, purpose, sources and limits.

A group of settings is a frozen dataclass whose fields are made by `setting(...)`. That one call has everything
that the command line, the environment, the file and the reference page need.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts of a setting besides its name, type and default."""

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

    `flag` is for the few that are set by hand; the command line takes all others as `--set GROUP.NAME=VALUE`.
    `env` lists variables besides `GPUFLEET_<GROUP>_<NAME>`. The unit "s" makes it a duration ("15s", "5m"). A
    `secret` is never shown, and refused on command lines, because they are public.
    """
    facts = Facts(help, flag, tuple(env), unit, tuple(choices), minimum, maximum, secret)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"facts": facts})
    return dataclasses.field(default=default, metadata={"facts": facts})


@dataclasses.dataclass(frozen=True)
class Setting:
    """A declared setting with its name in each source."""

    group: str
    name: str
    type: Any
    default: Any
    facts: Facts

    @property
    def key(self) -> str:
        """Return the name in messages and in the file: `server.port`."""
        return f"{self.group}.{self.name}"

    @property
    def flag(self) -> str | None:
        """Return the command-line flag of its own, or None: then it is set by `--set`, unless it is a secret."""
        return self.facts.flag

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the environment variables, the most specific first."""
        return (f"GPUFLEET_{self.group}_{self.name}".upper(), *self.facts.env)


def settings_of(group: str, cls: type) -> list[Setting]:
    """Return the settings of a group, in order of declaration."""
    return [
        Setting(group, field.name, field.type, _default(field), field.metadata["facts"])
        for field in dataclasses.fields(cls)
    ]


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
