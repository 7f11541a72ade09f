"""Root file systems that stand for the base images of the Dockerfile, where no image registry can be reached.

debootstrap makes a minimal system of the distribution that this machine runs, from the mirror that apt uses, trimmed
as Docker's slim images are. Python, with the libraries that it needs, and Node.js are this machine's, below
`/usr/local`, as in the official images.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from tests.debian import unpacked

from e2e.cluster.errors import Unavailable

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_UNUSED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
_LEFT_OUT = ("test", "tests", "__pycache__", "config-*", "_tkinter*", "_test*", "idle_test")


def missing() -> list[str]:
    """Return what this machine lacks to make the base images."""
    lacks = [f"needs {tool}" for tool in ("apt-get", "dpkg", "chroot", "ldd") if shutil.which(tool) is None]
    lacks += [f"needs {tool} of Node.js" for tool in ("node", "npm") if shutil.which(tool) is None]
    if Path(sys.base_prefix) == Path("/usr"):
        lacks.append("needs a Python with a directory of its own, not the distribution's")
    return lacks


def version() -> str:
    """Return what the base images depend on, besides this module."""
    node = subprocess.run(
        ["node", "--version"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    return f"{_release()} {sys.version} {node} {CERTIFICATES.stat().st_size if CERTIFICATES.exists() else 0}"


def debian(root: Path) -> None:
    """Make a minimal system in `root`."""
    tool = unpacked("debootstrap")
    command = [
        "sh",
        str(tool / "usr/sbin/debootstrap"),
        "--variant=minbase",
        "--include=ca-certificates,netbase",
    ]
    environment = {**os.environ, "DEBOOTSTRAP_DIR": str(tool / "usr/share/debootstrap")}
    done = subprocess.run(
        [*command, _release(), str(root), _mirror()],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"debootstrap failed: {' '.join(last)}")
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    for device in (root / "dev").iterdir():
        if not device.is_dir() or device.is_symlink():
            device.unlink()
    if CERTIFICATES.exists():  # also those of a company's proxy, through which packages are downloaded
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))


def add_python(root: Path) -> None:
    """Copy this Python to `/usr/local`, with pip as its only package."""
    prefix, local = Path(sys.base_prefix), root / "usr/local"
    stdlib = Path(sysconfig.get_path("stdlib"))
    name = stdlib.name
    shutil.copytree(
        stdlib,
        local / "lib" / name,
        symlinks=True,
        ignore=shutil.ignore_patterns(*_LEFT_OUT, "site-packages"),
        dirs_exist_ok=True,
    )
    for library in prefix.glob("lib/libpython*.so*"):
        shutil.copy2(library, local / "lib", follow_symlinks=False)
    (local / "bin").mkdir(exist_ok=True)
    shutil.copy2(prefix / "bin" / name, local / "bin" / name)
    for alias in ("python", "python3"):
        (local / "bin" / alias).symlink_to(name)
    add_libraries(root, [prefix / "bin" / name, *(local / "lib" / name / "lib-dynload").glob("*.so")])
    _chroot(root, "ldconfig")
    _chroot(root, "python3", "-m", "ensurepip", "--default-pip")


def add_node(root: Path) -> None:
    """Copy this machine's Node.js and npm to `/usr/local`."""
    local = root / "usr/local"
    node, npm = (Path(os.path.realpath(str(shutil.which(name)))) for name in ("node", "npm"))
    modules = next(each for each in npm.parents if each.name == "npm")
    shutil.copytree(modules, local / "lib/node_modules/npm", symlinks=True)
    (local / "bin").mkdir(exist_ok=True)
    shutil.copy2(node, local / "bin/node")
    (local / "bin/npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
    add_libraries(root, [node])


def add_libraries(root: Path, programs: Iterable[Path]) -> None:
    """Copy the shared libraries that the programs need and `root` lacks."""
    for program in programs:
        lines = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=30).stdout
        for found in re.findall(r"=> (/\S+)", lines):
            library = Path(found)
            target = root / library.relative_to("/")
            if not library.is_relative_to(sys.base_prefix) and not _exists_in(root, library):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(library, target)


def _exists_in(root: Path, path: Path) -> bool:
    return subprocess.run(["chroot", root, "test", "-e", path], timeout=30).returncode == 0


def _chroot(root: Path, *command: str) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        ["chroot", root, *command], env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed in the base image: {done.stderr.strip()[-300:]}")


def _release() -> str:
    text = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\S+)", text, re.MULTILINE)
    return found[1] if found else "stable"


def _mirror() -> str:
    """Return the first mirror of apt."""
    sources = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], capture_output=True, text=True
    )
    if not (uris := sources.stdout.split()):
        raise Unavailable("apt has no mirror")
    return uris[0]
