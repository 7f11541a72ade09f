"""Fit lines into the terminal; what is written to a file or a pipe stays on one line."""

import shutil
import sys
import textwrap


def terminal_width() -> int:
    """Return the width of the terminal that standard output is, or 0 if it is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def wrapped(line: str, width: int, indent: int = 4) -> str:
    """Return the line in parts of at most `width` characters, 0 for no limit; the later parts are indented."""
    if not width or len(line) <= width:
        return line
    parts = textwrap.wrap(
        line.lstrip(),
        max(width, indent + 20),
        initial_indent=line[: len(line) - len(line.lstrip())],
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(parts)
