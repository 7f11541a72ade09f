"""Load the settings: flags first, then the environment, then `gpufleet.toml`, then defaults.

A wrong value stops the program with a message that names the setting, the source of the value and what the
setting takes. An unknown name is refused with the nearest known one: a misspelt setting that is silently
ignored would be worse.
"""

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from gpufleet.errors import SettingsError
from gpufleet.runtime.settings.field import Setting, settings_of
from gpufleet.runtime.settings.groups import CLUSTER_GROUPS, GROUPS
from gpufleet.runtime.settings.parse import default_text, parse
from gpufleet.runtime.settings.removed import REMOVED

T = TypeVar("T")

DEFAULT_FILE = Path("gpufleet.toml")


class Settings:
    """All groups, each a frozen dataclass: `settings[ServerSettings].port`.

    `clusters` has the settings of each cluster by name: the `[clusters.NAME.GROUP]` tables of the file override
    the groups here. Without such tables there is one cluster, named `default`. `removed` has each removed setting
    that is still set, and where.
    """

    def __init__(
        self,
        groups: Mapping[type, object],
        clusters: Mapping[str, "Settings"] | None = None,
        removed: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._groups = dict(groups)
        self.removed = removed
        self.clusters: Mapping[str, Settings] = clusters or {"default": self}

    def __getitem__(self, group: type[T]) -> T:
        return cast(T, self._groups[group])

    def replace(self, *groups: object) -> "Settings":
        """Return these settings with some groups replaced, for all clusters."""
        changed = {**self._groups, **{type(group): group for group in groups}}
        clusters = {n: s.replace(*groups) for n, s in self.clusters.items() if s is not self}
        return Settings(changed, clusters)

    def with_clusters(self, clusters: Mapping[str, "Settings"]) -> "Settings":
        """Return these settings with these clusters instead of those of the file."""
        return Settings(self._groups, clusters)


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Load settings from `flags` (by dotted key), `environment` and `file` (default: gpufleet.toml if it exists)."""
    where, tables = _read_file(file, environment)
    _refuse_unknown_variables(environment)
    own = {name: table for name, table in tables.items() if name != "clusters"}
    groups = {cls: _load_group(name, cls, flags, environment, (where, own)) for name, cls in GROUPS.items()}
    clusters = {
        name: _load_cluster(where, name, table, groups) for name, table in tables.get("clusters", {}).items()
    }
    return Settings(groups, clusters, list(_removed(flags, environment, where, tables)))


def _removed(
    flags: Mapping[str, object], environment: Mapping[str, str], where: str, tables: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each removed setting that is still set, and its source."""
    for key in REMOVED:
        group, _, name = key.partition(".")
        variable = _variable(key)
        per_cluster = [table.get(group, {}) for table in tables.get("clusters", {}).values()]
        if key in flags:
            yield key, "flag --set"
        if variable in environment:
            yield key, f"environment variable {variable}"
        if any(name in table for table in (tables.get(group, {}), *per_cluster)):
            yield key, f"file {where}"


def _variable(key: str) -> str:
    return f"GPUFLEET_{key}".replace(".", "_").upper()


def _load_cluster(where: str, cluster: str, tables: object, base: Mapping[type, object]) -> Settings:
    """Return the settings of one cluster: its own tables over the groups of all."""
    if not isinstance(tables, dict):
        raise SettingsError(f"settings file {where}: write a cluster as [clusters.{cluster}.GROUP]")
    groups = dict(base)
    for name, table in tables.items():
        if name not in CLUSTER_GROUPS:
            known = ", ".join(CLUSTER_GROUPS)
            raise SettingsError(
                f"settings file {where}: [clusters.{cluster}.{name}]: a cluster can set {known}"
            )
        if not isinstance(table, dict):
            raise SettingsError(f"settings file {where}: write [clusters.{cluster}.{name}] as a table")
        cls = GROUPS[name]
        known_settings = settings_of(name, cls)
        _refuse_unknown_keys(f"{where}, cluster {cluster}", name, table, known_settings)
        own = {
            s.name: _parsed(s, table[s.name], f"file {where}, cluster {cluster}")
            for s in known_settings
            if s.name in table
        }
        groups[cls] = dataclasses.replace(cast(Any, base[cls]), **own)
    return Settings(groups)


def _load_group(
    name: str,
    cls: type,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    tables: tuple[str, Mapping[str, Mapping[str, object]]],
) -> object:
    where, table = tables[0], tables[1].get(name, {})
    known = settings_of(name, cls)
    _refuse_unknown_keys(where, name, table, known)
    return cls(**{s.name: _value(s, flags, environment, where, table) for s in known})


def _value(
    setting: Setting,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    where: str,
    table: Mapping[str, object],
) -> Any:
    if setting.key in flags:
        return _parsed(setting, flags[setting.key], f"flag {setting.flag or '--set'}")
    for variable in setting.variables:
        if variable in environment:
            return _parsed(setting, environment[variable], f"environment variable {variable}")
    if setting.name in table:
        return _parsed(setting, table[setting.name], f"file {where}")
    return setting.default


def _parsed(setting: Setting, raw: object, source: str) -> Any:
    try:
        return parse(setting, raw)
    except ValueError as refusal:
        shown = "its value" if setting.facts.secret else repr(raw)
        raise SettingsError(
            f"setting {setting.key}: {shown} from {source} is wrong; it takes {refusal}"
        ) from None


def _read_file(
    file: Path | None, environment: Mapping[str, str]
) -> tuple[str, Mapping[str, Mapping[str, object]]]:
    named = file or (Path(environment["GPUFLEET_CONFIG"]) if environment.get("GPUFLEET_CONFIG") else None)
    path = named or DEFAULT_FILE
    if named is None and not _may_exist(path):
        return str(path), {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is None:
            return str(path), {}
        raise SettingsError(f"settings file {path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path} is not valid TOML: {error}") from None
    except RecursionError:
        raise SettingsError(f"settings file {path} is nested too deeply") from None
    except OSError as error:
        raise SettingsError(f"settings file {path} can't be read: {error.strerror}") from None
    for name, table in tables.items():
        if name not in GROUPS and name != "clusters":
            raise SettingsError(f"settings file {path}: no group [{name}]{nearest(name, GROUPS)}")
        if not isinstance(table, dict):
            raise SettingsError(f"settings file {path}: {name} must be a table, written [{name}]")
    return str(path), tables


def _may_exist(path: Path) -> bool:
    """Return False if this user may not search the working directory.

    The agent of the chart runs as root without capabilities, and the working directory of the image belongs to
    another user. A default file that can't be read must not stop it.
    """
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _refuse_unknown_keys(where: str, group: str, table: Mapping[str, object], known: list[Setting]) -> None:
    names = [setting.name for setting in known]
    for key in table:
        if key not in names and f"{group}.{key}" not in REMOVED:
            raise SettingsError(f"settings file {where}: no setting {group}.{key}{nearest(key, names)}")


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = {"GPUFLEET_CONFIG", *map(_variable, REMOVED)} | {
        variable for name, cls in GROUPS.items() for s in settings_of(name, cls) for variable in s.variables
    }
    for variable in environment:
        prefix = any(variable.startswith(f"GPUFLEET_{name}_".upper()) for name in GROUPS)
        if prefix and variable not in known:
            raise SettingsError(f"environment variable {variable}: no such setting{nearest(variable, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a refusal, which names the known name that is most like `name`, if there is one."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def summarize(setting: Setting) -> str:
    """Return the text for `--help`: the beginning of the purpose, and the default unless it is off."""
    purpose = setting.facts.help.removesuffix(".")
    for end in (". ", "; ", " (", ": "):
        purpose = purpose.partition(end)[0]
    default = default_text(setting) if setting.type is not bool else ""
    return f"{purpose} (default: {default})" if default else purpose
