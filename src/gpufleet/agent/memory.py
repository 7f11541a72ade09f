"""Give memory back that was needed only to start.

A start leaves holes: modules are read, and compiled where no bytecode was shipped (20 MiB for NVML's bindings
alone), settings parsed, first lists decoded. glibc keeps what was freed, for threads in arenas of their own,
up to eight for each core of a large node. An agent runs for months and needs little, so it asks for few
arenas before its first thread and hands the holes back once it has settled.
"""

import ctypes
import gc

_M_ARENA_MAX = -8
_ARENAS = 2


def start_small() -> None:
    """Let threads share few arenas; has to come before they start."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return free memory to the system; where the C library can't (musl), nothing happens."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
