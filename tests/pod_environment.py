"""Run a program with the mounts of a pod.

The program gets its own mount namespace, in which `/etc/hosts` comes from the kubelet's directory of the pod and
the service account token is at its usual path. This needs no root if the kernel allows user namespaces; otherwise
the tests that need it are skipped.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

_SERVICE_ACCOUNT = "secrets/kubernetes.io/serviceaccount"
_ENTER = f"""
mount --bind "$POD/etc-hosts" /etc/hosts &&
mount -t tmpfs tmpfs /run &&
mkdir -p /run/{_SERVICE_ACCOUNT} &&
mount --bind "$POD/volumes/kubernetes.io~projected/kube-api-access" /run/{_SERVICE_ACCOUNT} &&
unset POD && exec "$@"
"""


def in_pod(
    uid: str, token: str, environ: Mapping[str, str], command: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    """Run `command` in the pod `uid` with a token and environment variables, and return the result."""
    _skip_without_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        pod = Path(folder) / "var/lib/kubelet/pods" / uid
        projected = pod / "volumes/kubernetes.io~projected/kube-api-access"
        projected.mkdir(parents=True)
        (pod / "etc-hosts").write_text("127.0.0.1 localhost\n")
        (projected / "token").write_text(token)
        return subprocess.run(
            ["unshare", "--map-root-user", "--mount", "sh", "-ec", _ENTER, "sh", *command],
            env={
                "PATH": os.environ["PATH"],
                "POD": str(pod),
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )


def _skip_without_namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine")
    if not Path("/run").is_dir() or Path("/var/run").resolve() != Path("/run"):
        pytest.skip("/var/run is not /run on this machine")
    attempt = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True,
        text=True,
    )
    if attempt.returncode:
        pytest.skip(f"this machine does not allow mount namespaces: {attempt.stderr.strip()}")
