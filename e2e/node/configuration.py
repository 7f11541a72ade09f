"""Configuration files of containerd, CNI and the kubelet; all of their paths are in one directory."""

import json
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.node.image import IMAGE
from e2e.node.programs import Programs

VENDOR_RUNTIME = "nvidia"
"""The handler of the runtime class whose containers go through `vendor_runtime.py`."""

_CNI_PLUGIN = """#!/bin/sh
# Pods use the network of the host; this only has to exist for the node to be ready.
case "$CNI_COMMAND" in
  VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}';;
  ADD) echo '{"cniVersion": "1.0.0", "ips": []}';;
esac
"""


@dataclass(frozen=True)
class PodNetwork:
    """A network of pods: a bridge with an address of the machine, from which pods get theirs."""

    bridge: str
    address: str
    """Of the machine on the bridge: gateway, DNS server, node and API server."""
    range: str
    plugins: Path
    """Directory of the CNI plugins."""

    def configuration(self) -> dict[str, Any]:
        """Return the CNI configuration."""
        bridge = {
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.range}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


@dataclass(frozen=True)
class Layout:
    """Where the files of a node are."""

    root: Path
    usual: bool = False
    """Whether the kubelet's directory and the pod logs have their usual paths, which charts mount."""

    @property
    def containerd_config(self) -> Path:
        """The configuration of containerd."""
        return self.root / "containerd.toml"

    @property
    def containerd_socket(self) -> Path:
        """The socket of containerd."""
        return self.root / "containerd.sock"

    @property
    def kubelet_config(self) -> Path:
        """The KubeletConfiguration."""
        return self.root / "kubelet.json"

    @property
    def kubelet(self) -> Path:
        """The kubelet's root directory: plugins and their registrations are below it."""
        return Path("/var/lib/kubelet") if self.usual else self.root / "kubelet"

    @property
    def pod_logs(self) -> Path:
        """The logs of the containers."""
        return Path("/var/log/pods") if self.usual else self.root / "pod-logs"

    @property
    def cdi(self) -> Path:
        """The directory of the CDI specs."""
        return self.root / "cdi"

    @property
    def gpus_spec(self) -> Path:
        """The CDI spec of the stand-ins for GPUs."""
        return self.cdi / "gpus.json"

    @property
    def devices(self) -> Path:
        """The character devices."""
        return self.root / "devices"


def write_containerd(
    layout: Layout, programs: Programs, pods: PodNetwork | None = None, snapshotter: str = "native"
) -> None:
    """Write the configuration of containerd, of CNI and of the vendor's runtime."""
    cni_programs, cni_configs = layout.root / "cni-bin", layout.root / "cni"
    for directory in (cni_programs, cni_configs, layout.cdi):
        directory.mkdir(parents=True)
    if pods is None:
        _write_program(cni_programs / "host", _CNI_PLUGIN)
        network: dict[str, Any] = {"cniVersion": "1.0.0", "name": "host", "plugins": [{"type": "host"}]}
    else:
        cni_programs, network = pods.plugins, pods.configuration()
    (cni_configs / "pods.conflist").write_text(json.dumps(network))
    vendor = layout.root / "vendor-runtime"
    script = Path(__file__).with_name("vendor_runtime.py")
    _write_program(
        vendor, f'#!/bin/sh\nexec {sys.executable} -I -S {script} {programs.runc} {layout.gpus_spec} "$@"\n'
    )
    document = {
        "version": 3,
        "root": str(layout.root / "containerd"),
        "state": str(layout.root / "containerd-state"),
        "grpc": {"address": str(layout.containerd_socket)},
        "ttrpc": {"address": f"{layout.containerd_socket}.ttrpc"},
        "plugins": {
            "io.containerd.internal.v1.opt": {"path": str(layout.root / "opt")},
            "io.containerd.nri.v1.nri": {"disable": True},
            "io.containerd.cri.v1.images": {"snapshotter": snapshotter, "pinned_images": {"sandbox": IMAGE}},
            "io.containerd.cri.v1.runtime": {
                "enable_cdi": True,
                "cdi_spec_dirs": [str(layout.cdi)],
                "disable_apparmor": True,
                # Without this runc can't start containers where the machine forbids a lower score.
                "restrict_oom_score_adj": True,
                "cni": {"bin_dirs": [str(cni_programs)], "conf_dir": str(cni_configs)},
                "containerd": {
                    "default_runtime_name": "runc",
                    "runtimes": {"runc": _runtime(programs.runc), VENDOR_RUNTIME: _runtime(vendor)},
                },
            },
        },
    }
    layout.containerd_config.write_text("\n".join(_toml(document)))


def write_kubelet(layout: Layout, port: int, health_port: int, pods: PodNetwork | None = None) -> None:
    """Write the KubeletConfiguration."""
    dns = {"clusterDNS": [pods.address], "clusterDomain": "cluster.local"} if pods else {}
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": pods.address if pods else "127.0.0.1",
        "port": port,
        **dns,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": health_port,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "podLogsDir": str(layout.pod_logs),
        "volumePluginDir": str(layout.root / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        # The disk of a test machine may be fuller than a node's should be; the image must stay.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "5s",
    }
    layout.kubelet_config.write_text(json.dumps(document, indent=2))


def _runtime(program: Path) -> dict[str, Any]:
    options = {"BinaryName": str(program), "SystemdCgroup": False}
    return {"runtime_type": "io.containerd.runc.v2", "options": options}


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _toml(table: Mapping[str, Any], name: str = "") -> list[str]:
    """Return the lines of a table; JSON's strings, numbers, booleans and lists are also TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            path = f"{name}.{json.dumps(key)}" if name else json.dumps(key)
            lines += [f"[{path}]", *_toml(value, path)]
    return lines
