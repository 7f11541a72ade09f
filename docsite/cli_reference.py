"""Generate the reference of all commands from their argument parsers."""

import argparse
from collections.abc import Iterator

from gpufleet.cli.commands import COMMANDS
from gpufleet.cli.start import build_parser
from gpufleet.runtime.settings.groups import GROUPS

_HEAD = """# Command reference

Generated from the argument parsers of the commands. [The command line](cli.md) explains the commands that show a server's data, [Settings](settings.md) the settings with their environment variables.

Every command also takes `--config FILE`, the settings file (`gpufleet.toml` in the current directory, if it exists), and the flags
of [`[log]`](settings.md#log). Those with settings take `--set GROUP.NAME=VALUE` for [settings](settings.md) without a flag.

| command | what it does | extra |
| --- | --- | --- |
"""
_TITLES = {"positional arguments": "Arguments", "options": "Flags", "settings": "Settings"}
_EVERYWHERE = ("--help", "--config", "--set", "--log-level", "--log-format")


def cli_reference() -> str:
    """Return the whole page in Markdown."""
    rows = "\n".join(
        f"| [`{name}`](#gpufleet-{name}) | {info.summary} | `gpufleet[{info.extra}]` |"
        for name, info in COMMANDS.items()
    )
    return _HEAD + rows + "\n\n" + "\n".join(_command(name) for name in COMMANDS)


def _command(name: str) -> str:
    command, parser = build_parser(name)
    usage = parser.format_usage().removeprefix("usage: ").strip()
    text = [f"## gpufleet {name}", f"```text\n{usage}\n\n{(parser.description or '').strip()}\n```"]
    for group in parser._action_groups:
        actions = list(_shown(group))
        if actions:
            text.append(
                _table(_TITLES.get(group.title or "", str(group.title).capitalize()), actions, parser)
            )
    used = ", ".join(
        f"[`[{group}]`](settings.md#{group})" for group, cls in GROUPS.items() if cls in command.GROUPS
    )
    if used:
        text.append(f"`--set` takes the settings of {used}.")
    return "\n\n".join(text) + "\n"


def _shown(group: argparse._ArgumentGroup) -> Iterator[argparse.Action]:
    for action in group._group_actions:
        if action.help != argparse.SUPPRESS and not set(action.option_strings) & set(_EVERYWHERE):
            yield action


def _table(title: str, actions: list[argparse.Action], parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    rows = [f"| {title} | |", "| --- | --- |"]
    for action in actions:
        spelling = formatter._format_action_invocation(action)
        rows.append(f"| `{_cell(spelling)}` | {_prose(formatter._expand_help(action))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Return help for a table cell; Markdown would take `<…>` for HTML and `*` for emphasis."""
    return _cell(text).replace("<", "&lt;").replace("*", "\\*")
