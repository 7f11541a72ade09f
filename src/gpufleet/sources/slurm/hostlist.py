"""Expand Slurm's abbreviated node lists: `gpu[01-03,7],login`, `rack[1-2]n[1-4]`.

The order matters, because the allocations of a job are listed in the same order. Written by hand, because
the libraries for it are C bindings of Slurm or come with their own configuration.
"""

import re
from collections.abc import Iterator
from itertools import product

from gpufleet.errors import SlurmUnavailable

MAX_NAMES = 200_000
"""Maximum number of names in one expression."""

_GROUP = re.compile(r"\[([0-9,\-]*)\]")


def expand(text: str) -> tuple[str, ...]:
    """Return all names in order."""
    names: list[str] = []
    for word in _words(text):
        for name in _names(word):
            names.append(name)
            if len(names) > MAX_NAMES:
                raise SlurmUnavailable(f"more than {MAX_NAMES} nodes in {text[:60]!r}")
    return tuple(names)


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers in `0-2,5` or `0-20:4` (every fourth), in order; skip other text."""
    found: list[int] = []
    for part in text.split(","):
        span, _, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            every = max(1, int(step)) if step.isdecimal() else 1
            found.extend(range(int(first), min(int(last or first), int(first) + MAX_NAMES) + 1, every))
    return tuple(found)


def _words(text: str) -> Iterator[str]:
    """Split at commas outside of brackets."""
    word, depth = "", 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield word
            word = ""
        else:
            word += letter
    yield word


def _names(word: str) -> Iterator[str]:
    pieces = _GROUP.split(word.strip())
    if pieces == [""]:
        return
    choices = [_range(piece) if odd % 2 else (piece,) for odd, piece in enumerate(pieces)]
    for choice in product(*choices):
        yield "".join(choice)


def _range(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            found.append(first)
        elif first.isdecimal() and last.isdecimal() and int(last) - int(first) < MAX_NAMES:
            found.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return tuple(found)
