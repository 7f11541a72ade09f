"""Build the Dockerfile with buildah, which Debian packages, without a daemon and without a registry.

Layers are cached in the user's cache by buildah itself: a build after a change of the source repeats only the steps
that copy it. The base images are made once (see `rootfs.py`).

    images = Images(print)
    agent = images.build("agent")
    images.save(agent, archive)
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.debian import unpacked

from e2e.cluster.cache import Progress, cache
from e2e.cluster.errors import Unavailable
from e2e.image import rootfs
from e2e.node.programs import packaged

ROOT = Path(__file__).parent.parent.parent
ROLES = ("agent", "scheduler", "server")
_PACKAGES = ("buildah", "libgpgme11", "libassuan0", "libsubid4", "libdevmapper1.02.1", "libseccomp2")
_CONFIGURATION = ("golang-github-containers-image", "golang-github-containers-common")
_BASE_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PIP_CERT": str(rootfs.CERTIFICATES),
    "NODE_EXTRA_CA_CERTS": str(rootfs.CERTIFICATES),
}
_PULLS = ("build", "commit", "from", "push")
"""Commands that check signatures, which images of this machine don't have."""

_LIMIT_S = 1200


class Images:
    """The images that this machine has built."""

    def __init__(self, progress: Progress) -> None:
        lacks = [] if os.geteuid() == 0 else ["needs root"]
        if lacks := lacks + rootfs.missing():
            raise Unavailable(f"this machine can't build the images: {', '.join(lacks)}")
        self._progress = progress
        self._tools = unpacked(*_PACKAGES, *_CONFIGURATION)
        self._libraries = self._tools / "usr/lib" / f"{platform.machine()}-linux-gnu"
        self._runc = packaged("runc", "runc")
        self._storage = cache() / "images"
        self._storage.mkdir(parents=True, exist_ok=True)

    def build(self, role: str) -> str:
        """Build one target of the Dockerfile and return the image's name."""
        system = self._base("system", rootfs.debian)
        python = self._base("python", rootfs.add_python, system)
        node = self._base("node", rootfs.add_node, system)
        name = f"localhost/gpufleet-{role}:e2e"
        self._progress(f"building {name}")
        self._run(
            "build",
            "--layers",
            f"--target={role}",
            f"--build-arg=PYTHON_IMAGE={python}",
            f"--build-arg=NODE_IMAGE={node}",
            f"--tag={name}",
            str(ROOT),
        )
        return name

    def single(self, name: str, program: Path) -> str:
        """Return an image with one statically linked program, under the name that a chart expects."""
        with tempfile.TemporaryDirectory(dir=self._storage) as folder:
            shutil.copy2(program, folder)
            self._dockerfile(Path(folder), f"COPY {program.name} /bin/{program.name}\nENV PATH=/bin\n", name)
        return name

    def save(self, name: str, archive: Path) -> None:
        """Write an image into a docker archive."""
        archive.unlink(missing_ok=True)
        self._run("push", "--quiet", name, f"docker-archive:{archive}:{name}")

    def size(self, name: str) -> int:
        """Return the bytes of all files of an image, uncompressed."""
        with self._container(name) as container:
            folder = self._run("mount", container)
            done = subprocess.run(
                ["du", "-sxb", folder], capture_output=True, text=True, check=True, timeout=120
            )
            return int(done.stdout.split()[0])

    def files(self, name: str) -> list[str]:
        """Return the paths of all files of an image."""
        with self._container(name) as container:
            folder = Path(self._run("mount", container))
            return [f"/{path.relative_to(folder)}" for path in folder.rglob("*") if not path.is_dir()]

    def run(self, name: str, *command: str, user: str = "10001:10001") -> str:
        """Run a command in a container of an image and return its output."""
        with self._container(name) as container:
            return self._run("run", f"--user={user}", container, "--", *command)

    @contextmanager
    def _container(self, name: str) -> Iterator[str]:
        container = self._run("from", "--pull-never", name)
        try:
            yield container
        finally:
            self._run("rm", container)

    def _base(self, kind: str, fill: Callable[[Path], None], parent: str = "scratch") -> str:
        """Return an image that `fill` makes of its parent, from the cache if its recipe is unchanged."""
        recipe = Path(rootfs.__file__).read_bytes() + rootfs.version().encode()
        name = f"localhost/gpufleet-base-{kind}:{hashlib.sha256(recipe).hexdigest()[:12]}"
        if self._exists(name):
            return name
        self._progress(f"making the base image {name}, once")
        variables = [f"--env={key}={value}" for key, value in _BASE_ENVIRONMENT.items()]
        with self._container(parent) as container:
            fill(Path(self._run("mount", container)))
            self._run("config", *variables, container)
            self._run("commit", "--quiet", container, name)
        return name

    def _dockerfile(self, context: Path, steps: str, name: str) -> None:
        file = context / "Dockerfile"
        file.write_text(f"FROM scratch\n{steps}")
        self._run("build", f"--file={file}", f"--tag={name}", str(context))

    def _exists(self, name: str) -> bool:
        found = json.loads(self._run("images", "--json") or "null")
        return any(name in (each["names"] or ()) for each in found or ())

    def _run(self, command: str, *arguments: str) -> str:
        """Run a command of buildah and return its output."""
        storage = [f"--root={self._storage / 'root'}", f"--runroot={self._storage / 'run'}"]
        options = (
            [f"--signature-policy={self._tools / 'etc/containers/policy.json'}"] if command in _PULLS else []
        )
        if command in ("build", "run"):
            options += ["--isolation=oci", f"--runtime={self._runc}", "--network=host"]
        done = subprocess.run(
            [
                str(self._tools / "usr/bin/buildah"),
                *storage,
                "--storage-driver=overlay",
                command,
                *options,
                *arguments,
            ],
            env={**os.environ, "LD_LIBRARY_PATH": str(self._libraries)},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            cwd="/",
        )
        if done.returncode:
            raise Unavailable(f"buildah {command} failed: {(done.stderr + done.stdout).strip()[-1500:]}")
        return done.stdout.strip()
