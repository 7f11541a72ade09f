"""Run kubectl, helm and other programs against the cluster, with their caches in its directory."""

import os
import subprocess
from pathlib import Path
from typing import Any

from e2e.cluster.binaries import Binaries
from e2e.cluster.errors import CommandFailed
from e2e.cluster.identity import Identity


class Commands:
    """Runs programs as an identity, by default the administrator."""

    def __init__(self, directory: Path, admin: Identity, binaries: Binaries) -> None:
        self._directory = directory
        self._admin = admin
        self._binaries = binaries

    def environment(self, identity: Identity | None = None) -> dict[str, str]:
        """Return the environment with which programs use this cluster and its kubectl and helm."""
        path = [
            str(self._binaries.kubectl.parent),
            str(self._binaries.helm.parent),
            os.environ.get("PATH", ""),
        ]
        home = self._directory / "home"
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "HELM"))},
            "PATH": os.pathsep.join(path),
            "KUBECONFIG": str((identity or self._admin).kubeconfig),
            "KUBECACHEDIR": str(home / "kube"),
            "HELM_CACHE_HOME": str(home / "helm-cache"),
            "HELM_CONFIG_HOME": str(home / "helm-config"),
            "HELM_DATA_HOME": str(home / "helm-data"),
        }

    def run(
        self,
        program: Path,
        *arguments: str,
        stdin: str | None = None,
        identity: Identity | None = None,
        namespace: str | None = None,
        timeout: float = 60,
        env: dict[str, Any] | None = None,
    ) -> str:
        """Return the output of the program. Raise `CommandFailed` with its output on another status than 0."""
        command = [str(program), *arguments, *(["--namespace", namespace] if namespace else [])]
        done = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**self.environment(identity), **(env or {})},
        )
        if done.returncode:
            name = " ".join([program.name, *arguments])
            raise CommandFailed(name, done.returncode, done.stdout, done.stderr)
        return done.stdout
