"""Print the script that completes commands, flags and values in a shell.

  gpufleet completion bash > /etc/bash_completion.d/gpufleet
  gpufleet completion zsh > "${fpath[1]}/_gpufleet"           # or: source <(gpufleet completion zsh)
  gpufleet completion fish > ~/.config/fish/completions/gpufleet.fish

Commands whose extra is not installed are completed without their flags.
"""

import argparse
import shlex
from dataclasses import dataclass, field

from gpufleet.cli.commands import COMMANDS
from gpufleet.runtime.settings import Settings

GROUPS: tuple[type, ...] = ()
SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Flag:
    """A flag, all its spellings, and the values that it takes if they are known."""

    names: tuple[str, ...]
    summary: str = ""
    values: tuple[str, ...] = ()
    takes_value: bool = True


@dataclass(frozen=True)
class Words:
    """What may follow a command."""

    flags: tuple[Flag, ...] = ()
    positionals: tuple[str, ...] = field(default_factory=tuple)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell of the script")


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the script."""
    words = {name: words_of(name) for name in COMMANDS}
    script = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]
    print(script(words), end="")
    return 0


def words_of(name: str) -> Words:
    """Return the flags and values of a command; none if its extra is missing."""
    from gpufleet.cli.start import SetAction, build_parser

    try:
        _, parser = build_parser(name)
    except ModuleNotFoundError:
        return Words()
    flags, positionals = [], []
    for action in parser._actions:
        values = tuple(map(str, action.choices or ()))
        if isinstance(action, SetAction):
            values = tuple(f"{key}=" for key in action.names)
        if action.option_strings:
            summary = " ".join((action.help or "").replace("%%", "%").split()).partition(". ")[0]
            flags.append(
                Flag(tuple(action.option_strings), summary.removesuffix("."), values, action.nargs != 0)
            )
        else:
            positionals += list(values)
    return Words(tuple(flags), (*positionals, *_RESOURCES) if name == "get" else tuple(positionals))


_RESOURCES = ("nodes", "gpus", "workloads", "claims", "queue", "leases")


def bash(words: dict[str, Words]) -> str:
    """Return the script for bash."""
    values, choices = [], []
    for name, each in words.items():
        for flag in each.flags:
            if flag.values:
                patterns = "|".join(shlex.quote(f"{name} {spelling}") for spelling in flag.names)
                values.append(f"        {patterns}) words={shlex.quote(' '.join(flag.values))};;")
        flags = " ".join(spelling for flag in each.flags for spelling in flag.names)
        follows = " ".join(each.positionals)
        choices.append(f"        {name}) flags={shlex.quote(flags)}; follows={shlex.quote(follows)};;")
    return _BASH.format(
        commands=" ".join([*words, "help", "version"]), values="\n".join(values), choices="\n".join(choices)
    )


def zsh(words: dict[str, Words]) -> str:
    """Return the script for zsh, which runs the functions of bash.

    In a directory of `fpath` zsh runs it at the first Tab, as the function `_gpufleet`: then it also completes.
    """
    first_tab = '[ "${funcstack[1]}" != _gpufleet ] || _bash_complete -o default -F _gpufleet\n'
    head = "#compdef gpufleet kubectl-gpufleet\nautoload -U +X bashcompinit && bashcompinit\n"
    return head + bash(words) + first_tab


def fish(words: dict[str, Words]) -> str:
    """Return the script for fish."""
    lines = ["complete -c gpufleet -f"]
    for name, each in words.items():
        summary = shlex.quote(COMMANDS[name].summary)
        lines.append(f"complete -c gpufleet -n __fish_use_subcommand -a {name} -d {summary}")
        seen = shlex.quote(f"__fish_seen_subcommand_from {name}")
        if each.positionals:
            lines.append(f"complete -c gpufleet -n {seen} -a {shlex.quote(' '.join(each.positionals))}")
        lines += [f"complete -c gpufleet -n {seen} {_fish_flag(flag)}" for flag in each.flags]
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    parts = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
    if flag.takes_value:
        parts.append(f"-x -a {shlex.quote(' '.join(flag.values))}" if flag.values else "-r -F")
    return " ".join([*parts, f"-d {shlex.quote(flag.summary[:60])}"])


_BASH = """_gpufleet() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words="" flags="" follows=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case "$command $previous" in
{values}
    esac
    if [ -n "$words" ]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
        case "${{COMPREPLY[*]}}" in *=) compopt -o nospace 2>/dev/null;; esac
        return
    fi
    case "$command" in
{choices}
    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$flags" -- "$current"));;
        *) COMPREPLY=($(compgen -W "$follows" -- "$current"));;
    esac
}}
complete -o default -F _gpufleet gpufleet kubectl-gpufleet
"""
