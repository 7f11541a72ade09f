"""Parse one command's flags, load the settings, set up the logs and run the command."""

import argparse
import importlib
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

from gpufleet.cli.commands import COMMANDS
from gpufleet.runtime.logs import configure_logs
from gpufleet.runtime.settings import LogSettings, Settings, load_settings
from gpufleet.runtime.settings.field import Setting, settings_of
from gpufleet.runtime.settings.groups import GROUPS
from gpufleet.runtime.settings.load import describe, summarize


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
    command, parser = build_parser(name, whole="--help-all" in words)
    arguments = parser.parse_args(words)
    flags = {k: v for k, v in vars(arguments).items() if "." in k and v is not None}
    settings = load_settings(flags, environment, arguments.config)
    log = settings[LogSettings]
    style = ("console" if sys.stderr.isatty() else "json") if log.format == "auto" else log.format
    configure_logs(log.level, style)
    _allow_many_files()
    return command.run(settings, arguments)


def build_parser(name: str, *, whole: bool = False) -> tuple[Command, argparse.ArgumentParser]:
    """Return the module of a command and the parser of its flags; `whole` describes all of them in its help."""
    command = cast(Command, importlib.import_module(f"gpufleet.cli.{name}"))
    parser = argparse.ArgumentParser(
        prog=f"gpufleet {name}",
        description=command.__doc__ or COMMANDS[name].summary,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help="Show this help.")
    hidden = _add_settings(parser, command, whole=whole)
    if hidden or whole:
        parser.add_argument("--help-all", action="help", help="Show all flags, with what they take.")
    if hidden:
        parser.epilog = f"{hidden} more flags: gpufleet {name} --help-all, or docs/settings.md."
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


_RARE = {"server.cors_origins", "server.hosts", "kubernetes.lease_namespace"}
"""Settings with a short flag that few users need."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wide enough for one line per flag; a switch has one form, `--[no-]debug`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)


def _add_settings(parser: argparse.ArgumentParser, command: Command, *, whole: bool) -> int:
    """Add the command's own flags and its settings; return how many of them --help does not show.

    Settings with a short name of their own are the common ones.
    """
    command.arguments(parser)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="Settings file (default: gpufleet.toml, if it exists)."
    )
    hidden = 0
    common = None if whole else parser.add_argument_group("common settings")
    for name, cls in GROUPS.items():
        if cls not in command.GROUPS and cls is not LogSettings:
            continue
        section = common or parser.add_argument_group(f"{name} settings")
        for setting in settings_of(name, cls):
            common_here = setting.facts.flag is not None and setting.key not in _RARE
            shown = whole or (common_here and (cls is not LogSettings or bool(command.GROUPS)))
            _add_flag(section, setting, describe(setting) if whole else summarize(setting) if shown else None)
            hidden += not shown and setting.flag is not None
    return hidden


def _add_flag(section: argparse._ArgumentGroup, setting: Setting, text: str | None) -> None:
    """Add the flag of a setting; without a text it is not in the help."""
    if setting.flag is None:
        return
    help_text = argparse.SUPPRESS if text is None else text.replace("%", "%%")
    if setting.type is bool:
        section.add_argument(
            setting.flag,
            dest=setting.key,
            action=argparse.BooleanOptionalAction,
            default=None,
            help=help_text,
        )
    else:
        section.add_argument(
            setting.flag, dest=setting.key, default=None, metavar=_metavar(setting), help=help_text
        )


def _metavar(setting: Setting) -> str:
    if setting.facts.unit == "s":
        return "DURATION"
    if setting.type in (Path, Path | None):
        return "PATH"
    return setting.name.rpartition("_")[2].upper()
