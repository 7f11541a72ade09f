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
from gpufleet.runtime.settings.load import describe


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
    command = cast(Command, importlib.import_module(f"gpufleet.cli.{name}"))
    parser = argparse.ArgumentParser(
        prog=f"gpufleet {name}",
        description=command.__doc__ or COMMANDS[name].summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.arguments(parser)
    parser.usage = " ".join(["%(prog)s", *_positionals(parser), "[FLAGS]"])
    _add_settings(parser, command.GROUPS)
    arguments = parser.parse_args(words)
    flags = {k: v for k, v in vars(arguments).items() if "." in k and v is not None}
    settings = load_settings(flags, environment, arguments.config)
    log = settings[LogSettings]
    style = ("console" if sys.stderr.isatty() else "json") if log.format == "auto" else log.format
    configure_logs(log.level, style)
    _allow_many_files()
    return command.run(settings, arguments)


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


def _add_settings(parser: argparse.ArgumentParser, groups: tuple[type, ...]) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="Settings file (default: gpufleet.toml if it exists)."
    )
    for name, cls in GROUPS.items():
        if cls in groups or cls is LogSettings:
            section = parser.add_argument_group(f"{name} settings")
            for setting in settings_of(name, cls):
                _add_flag(section, setting)


def _add_flag(section: argparse._ArgumentGroup, setting: Setting) -> None:
    if setting.flag is None:
        return
    text = describe(setting).replace("%", "%%")
    if setting.type is bool:
        section.add_argument(
            setting.flag,
            dest=setting.key,
            action=argparse.BooleanOptionalAction,
            default=None,
            help=setting.facts.help,
        )
    else:
        section.add_argument(
            setting.flag, dest=setting.key, default=None, metavar=_metavar(setting), help=text
        )


def _metavar(setting: Setting) -> str:
    if setting.facts.choices:
        return "|".join(setting.facts.choices)
    if setting.facts.unit == "s":
        return "DURATION"
    return setting.name.upper()
