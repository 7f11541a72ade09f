"""Programs of a cluster with a pod network: kube-proxy, CoreDNS, CNI plugins and iptables.

kube-proxy has the version of the control plane and comes from the same module; CoreDNS and the plugins are built from
the module in this directory. iptables comes from Debian packages.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.debian import unpacked

from e2e.cluster import binaries, build
from e2e.cluster.cache import Progress, cache, has_programs, stored
from e2e.cluster.errors import Unavailable

_HERE = Path(__file__).parent
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_PLUGIN_PACKAGES = (f"{_PLUGINS}/main/bridge", f"{_PLUGINS}/main/loopback", f"{_PLUGINS}/ipam/host-local")
_BUILT = ("kube-proxy", "coredns", "bridge", "loopback", "host-local")
_IPTABLES = (
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libxtables12",
)
_COMMANDS = (
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
)


@dataclass(frozen=True)
class NetworkPrograms:
    """Paths of the programs, and the environment in which kube-proxy finds iptables."""

    directory: Path
    iptables: Path

    @property
    def kube_proxy(self) -> Path:
        """Routes Services to pods."""
        return self.directory / "kube-proxy"

    @property
    def coredns(self) -> Path:
        """The DNS server of the cluster."""
        return self.directory / "coredns"

    def environment(self, commands: Path) -> dict[str, str]:
        """Return an environment with iptables on PATH; its commands are links to one program, made in `commands`."""
        commands.mkdir()
        for name in _COMMANDS:
            (commands / name).symlink_to(self.iptables / "usr/sbin/xtables-nft-multi")
        [extensions] = self.iptables.glob("usr/lib/*/xtables")
        return {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(extensions.parent),
            "XTABLES_LIBDIR": str(extensions),
        }


def find(progress: Progress) -> NetworkPrograms:
    """Return all programs. Raise `Unavailable` with a one-line reason if this machine can't run a pod network."""
    if shutil.which("ip") is None:
        raise Unavailable("needs ip of iproute2")
    if shutil.which("apt-get") is None:
        raise Unavailable("needs apt-get to download iptables")
    return NetworkPrograms(_from_cache() or _obtain(progress), unpacked(*_IPTABLES))


def _name() -> str:
    sums = b"".join((module / "go.sum").read_bytes() for module in (build.HERE, _HERE))
    return f"network-{binaries.pinned_version()}-{hashlib.sha256(sums).hexdigest()[:8]}"


def _from_cache() -> Path | None:
    directory = cache() / _name()
    return directory if has_programs(directory, _BUILT) else None


def _obtain(progress: Progress) -> Path:
    return stored(
        "the programs of a pod network",
        _name(),
        _from_cache,
        lambda target: _build(target, progress),
        progress,
    )


def _build(target: Path, progress: Progress) -> None:
    target.mkdir()
    build.programs(target, binaries.pinned_version(), ["kube-proxy"], progress)
    build.module(target, "CoreDNS and CNI plugins", _HERE, ["./coredns", *_PLUGIN_PACKAGES], progress)
