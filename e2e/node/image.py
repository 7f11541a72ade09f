"""Write a container image as a docker archive, without a registry and without a build tool."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "gpufleet.test/busybox:1"
"""The image of all containers and, because it sleeps by default, of the pod sandboxes."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_COMMANDS = ("sh", "sleep", "cat", "env", "ls", "mknod", "touch", "test", "echo", "true")


def write(archive: Path, busybox: Path) -> None:
    """Write the image: busybox and the names of a few of its commands."""
    layer = _layer(busybox)
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for name, content in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(tar, name, content)


def _layer(busybox: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("bin", "tmp", "dev", "etc", "proc", "sys"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        _add(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for name in _COMMANDS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return file.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))
