"""The command line: look up the command, load the settings, run it.

A command is a module of this package with `GROUPS` (the settings that become its flags), `arguments(parser)`
for flags that are not settings, and `run(settings, arguments)`. Only the requested command is imported, so
that `gpufleet --help` is fast and works without any extra installed.
"""

import os
import sys

from gpufleet import __version__
from gpufleet.cli.commands import COMMANDS, overview
from gpufleet.errors import GpufleetError, SettingsError


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status (2: wrong usage or settings, 1: it failed)."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0 if words else 2
    if words[0] in ("-V", "--version", "version"):
        print(f"gpufleet {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"gpufleet: {_unknown(words[0])}", file=sys.stderr)
        return 2
    try:
        from gpufleet.cli.start import start

        return start(words[0], words[1:], os.environ)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "gpufleet":
            raise
        print(_missing_packages(words[0], error.name), file=sys.stderr)
        return 1
    except GpufleetError as error:
        print(f"gpufleet {words[0]}: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _missing_packages(command: str, module: str) -> str:
    install = f"pip install 'gpufleet[{COMMANDS[command].extra}]'"
    return f"gpufleet {command} needs more packages: {install} (no module {module!r})"


def _unknown(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no command {word!r}{hint} (see gpufleet --help)"
