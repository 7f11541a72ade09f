"""Bind addresses before anything else starts, so that a port in use is reported immediately."""

import errno
import ipaddress
import socket

from gpufleet.errors import OperationRefused, SettingsError


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; it does not listen yet."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        raise SettingsError(
            f"can't listen on {host!r}: not an address; give an IP address or a host name with --host"
        ) from None
    bound = socket.socket(family, kind)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _refusal(error, host, port) from None
    bound.setblocking(False)
    return bound


def address_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)  # noqa: S104
    except socket.gaierror:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _refusal(error: OSError, host: str, port: int) -> OperationRefused:
    if error.errno == errno.EADDRINUSE:
        return OperationRefused(
            f"port {port} on {host} is in use by another program; stop it, or choose another port "
            "with --port (0 picks a free one)"
        )
    if error.errno == errno.EACCES:
        return OperationRefused(
            f"port {port} on {host} may only be used by root; choose one above 1023 with --port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return OperationRefused(f"{host} is not an address of this machine; choose another with --host")
    return OperationRefused(f"can't listen on {host} port {port}: {error.strerror}")
