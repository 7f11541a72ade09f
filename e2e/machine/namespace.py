"""A network namespace of its own for this process and everything that it starts.

Nothing in it has a route out of the machine, so no packet can leave, and ports and firewall rules of the machine stay
as they are. Interfaces, routes and rules disappear with the last process in it.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SETTINGS = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}


@contextmanager
def own_network(bridge: str, address: str, services: str = "10.0.0.0/24") -> Iterator[None]:
    """Enter a new network namespace with loopback and a bridge that has `address`, and return to the old one at the end.

    Addresses of Services have a route, so that the processes of the machine reach them, too.

    A namespace belongs to a thread: threads that exist already stay in the old one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _check(libc.unshare(_CLONE_NEWNET))
        try:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", bridge, "type", "bridge")
            _ip("address", "add", address, "dev", bridge)
            _ip("link", "set", bridge, "up")
            _ip("route", "add", services, "dev", bridge)
            for name, value in _SETTINGS.items():
                Path("/proc/sys", name).write_text(value)
            yield
        finally:
            _check(libc.setns(before, _CLONE_NEWNET))
    finally:
        os.close(before)


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)
