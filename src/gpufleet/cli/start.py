"""Parse one command's flags, load the settings, set up the logs and run the command."""

import argparse
import importlib
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from gpufleet.cli.commands import COMMANDS
from gpufleet.runtime.logs import configure_logs, get_logger
from gpufleet.runtime.settings import LogSettings, Settings, load_settings
from gpufleet.runtime.settings.field import Setting, settings_of
from gpufleet.runtime.settings.groups import GROUPS
from gpufleet.runtime.settings.load import nearest, summarize
from gpufleet.runtime.settings.removed import REMOVED, removal

_log = get_logger("settings")


class Command(Protocol):
    """The interface of a command's module."""

    GROUPS: tuple[type, ...]
    __doc__: str | None

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add flags that are not settings."""

    def run(self, settings: Settings, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit status."""


def start(name: str, words: list[str], environment: Mapping[str, str]) -> int:
    """Run the command `name` with the flags in `words`."""
    command, parser = build_parser(name)
    _refuse_former_flags(parser, words)
    arguments = parser.parse_args(words)
    flags = {k: v for k, v in vars(arguments).items() if "." in k and v is not None}
    settings = load_settings(flags, environment, arguments.config)
    log = settings[LogSettings]
    style = ("console" if sys.stderr.isatty() else "json") if log.format == "auto" else log.format
    configure_logs(log.level, style)
    for key, source in settings.removed:
        _log.warning("removed_setting", source=source, problem=removal(key))
    _allow_many_files()
    return command.run(settings, arguments)


def build_parser(name: str) -> tuple[Command, argparse.ArgumentParser]:
    """Return the module of a command and the parser of its flags."""
    command = cast(Command, importlib.import_module(f"gpufleet.cli.{name}"))
    parser = argparse.ArgumentParser(
        prog=f"gpufleet {name}",
        description=command.__doc__ or COMMANDS[name].summary,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help="Show this help.")
    command.arguments(parser)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="Settings file (default: gpufleet.toml, if it exists)."
    )
    _add_settings(parser, command.GROUPS)
    parser.usage = " ".join(["%(prog)s", *_positionals(parser), "[FLAGS]"])
    return command, parser


def _allow_many_files() -> None:
    """Raise the limit of open files to its maximum: each connection is one, and 1,024 are few for a fleet.

    The low default protects programs that use select(2), which this one does not.
    """
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a maximum, unlimited, that it rejects
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def _positionals(parser: argparse.ArgumentParser) -> list[str]:
    """Return the positional arguments, for a usage line without all the flags."""
    words = []
    for action in parser._get_positional_actions():
        word = str(
            action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest)
        )
        words.append(f"[{word}]" if action.nargs in ("?", "*") else word)
    return words


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wide enough for one line per flag; a switch has one form, `--[no-]debug`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)


class SetAction(argparse.Action):
    """`--set GROUP.NAME=VALUE`: store the value of a setting as its own flag would; the last one wins."""

    def __init__(self, *, settings: Sequence[Setting], **facts: Any) -> None:
        super().__init__(**facts)
        self._settings = {setting.key: setting for setting in settings}
        self.names = [key for key, setting in self._settings.items() if not setting.facts.secret]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the value, or refuse a name that this command does not use."""
        key, is_pair, value = str(values).partition("=")
        if not is_pair:
            raise argparse.ArgumentError(self, f"{key}: write GROUP.NAME=VALUE")
        setting = self._settings.get(key)
        if setting is None and key not in REMOVED:
            raise argparse.ArgumentError(
                self, f"{parser.prog} has no setting {key}{nearest(key, self.names)}"
            )
        if setting is not None and setting.facts.secret:
            raise argparse.ArgumentError(
                self,
                f"{key} is a secret and command lines are public; set {setting.variables[0]} or the settings file",
            )
        setattr(namespace, key, value)


def _add_settings(parser: argparse.ArgumentParser, groups: Sequence[type]) -> None:
    """Add the flags of the common settings, and `--set` for all settings of the command.

    Every command has the flags of the logs; a command without settings of its own does not show them.
    """
    section = parser.add_argument_group("settings")
    settings = [
        setting
        for name, cls in GROUPS.items()
        if cls in groups or cls is LogSettings
        for setting in settings_of(name, cls)
    ]
    for setting in settings:
        if setting.flag is not None:
            _add_flag(section, setting, summarize(setting) if groups else argparse.SUPPRESS)
    if groups:
        section.add_argument(
            "--set",
            action=SetAction,
            settings=settings,
            metavar="GROUP.NAME=VALUE",
            help="Any setting of docs/settings.md; repeatable.",
        )


def _add_flag(section: argparse._ArgumentGroup, setting: Setting, text: str) -> None:
    flag, help_text = str(setting.flag), text.replace("%", "%%")
    if setting.type is bool:
        section.add_argument(
            flag, dest=setting.key, action=argparse.BooleanOptionalAction, default=None, help=help_text
        )
    else:
        section.add_argument(flag, dest=setting.key, default=None, metavar=_metavar(setting), help=help_text)


def _refuse_former_flags(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse a flag that earlier versions made of the name of a setting, and name its replacement."""
    keys = [s.key for n, cls in GROUPS.items() for s in settings_of(n, cls) if not s.facts.secret]
    former = {"--" + key.replace(".", "-").replace("_", "-"): key for key in [*keys, *REMOVED]}
    for word in words:
        flag, _, value = word.partition("=")
        key = former.get(flag) or former.get(flag.replace("--no-", "--", 1))
        if key and flag not in parser._option_string_actions:
            value = "false" if flag.startswith("--no-") else value or "VALUE"
            parser.error(removal(key) if key in REMOVED else f"no flag {flag}; write --set {key}={value}")


def _metavar(setting: Setting) -> str:
    if setting.facts.unit == "s":
        return "DURATION"
    if setting.type in (Path, Path | None):
        return "PATH"
    return setting.name.rpartition("_")[2].upper()
