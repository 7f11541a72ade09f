"""Memory that only the start needed is returned to the system."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import os
from gpufleet.agent.memory import trim, limit_arenas

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

limit_arenas()
pieces = [bytes(5000) for _ in range(8000)]
top = bytes(5000)
full = resident()
del pieces
trim()
print(full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what was freed, and trims")
def test_freed_memory_is_returned_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 30
