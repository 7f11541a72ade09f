"""Keep the agent's memory small.

The start leaves holes in the heap: modules are loaded, and compiled where no bytecode was shipped (20 MiB
for NVML's bindings alone), settings parsed, first lists decoded. glibc keeps freed memory, and gives threads
arenas of their own, up to eight per core. The agent runs for months and needs little, so it limits the
arenas before the first thread starts, and returns free memory once it has settled.
"""

import ctypes
import gc

_M_ARENA_MAX = -8
_ARENAS = 2


def limit_arenas() -> None:
    """Let threads share few arenas; must be called before they start."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_ARENA_MAX, _ARENAS)


def trim() -> None:
    """Return free memory to the system; does nothing where the C library can't (musl)."""
    gc.collect()
    if malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)
