"""Reach a server in a Kubernetes cluster with kubectl: `kubectl port-forward`, and the token of the kubeconfig.

The API server's proxy for services would need no kubectl, but it removes the Authorization header, and a gpufleet
server in a cluster needs a login.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Unavailable

START_TIMEOUT = 20.0
_FORWARDING = re.compile(r"Forwarding from (127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class Kubectl:
    """kubectl with its kubeconfig and context, and the service to reach."""

    service: str
    """NAMESPACE/NAME of the server's Service."""
    kubeconfig: str = ""
    context: str = ""

    def command(self, *words: str) -> list[str]:
        """Return a command line of kubectl."""
        path = shutil.which("kubectl")
        if path is None:
            raise GpufleetError("kubectl is not installed; give the address of the server with --server")
        flags = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        flags += [f"--context={self.context}"] if self.context else []
        return [path, *flags, *words]

    @contextmanager
    def forward(self) -> Iterator[str]:
        """Forward a local port to the service; yield the URL."""
        namespace, _, name = self.service.rpartition("/")
        words = ["port-forward", "--address=127.0.0.1", f"--namespace={namespace or 'default'}"]
        process = subprocess.Popen(
            self.command(*words, f"service/{name}", ":http"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends the command first, which then ends the forwarding
        )
        timer = threading.Timer(START_TIMEOUT, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            found = _FORWARDING.search(process.stdout.readline())
            timer.cancel()
            if found is None:
                process.kill()
                raise Unavailable(f"{self._problem(process)}; {self._advice()}")
            yield f"http://{found[1]}"
        finally:
            timer.cancel()
            process.terminate()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _problem(self, process: "subprocess.Popen[str]") -> str:
        lines = (process.communicate()[1] or "").strip().splitlines()
        return f"kubectl can't reach the service {self.service}: {lines[-1] if lines else 'no answer'}"

    def _advice(self) -> str:
        return "give another with --service NAMESPACE/NAME, or an address with --server"

    def token(self) -> str:
        """Return the bearer token that kubectl would send, or an empty text; TokenReview accepts it."""
        words = ["config", "view", "--minify", "--raw", "--flatten", "--output=json"]
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        users = (json.loads(done.stdout).get("users") if done.returncode == 0 else None) or []
        user: dict[str, Any] = users[0].get("user", {}) if users else {}
        if token := user.get("token"):
            return str(token)
        if file := user.get("tokenFile"):
            return Path(file).read_text().strip() if Path(file).exists() else ""
        return _plugin_token(user["exec"]) if user.get("exec") else ""


def _plugin_token(plugin: Mapping[str, Any]) -> str:
    """Run the credential plugin of the kubeconfig and return its token, or an empty text."""
    info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    extra = {each["name"]: each["value"] for each in plugin.get("env") or ()}
    environ = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        done = subprocess.run(
            [plugin["command"], *(plugin.get("args") or ())],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=60,
        )
        return str(json.loads(done.stdout)["status"].get("token", ""))
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        raise Unavailable(f"the credential plugin {plugin['command']} failed: {error}") from error


def default_kubeconfig(environ: Mapping[str, str]) -> bool:
    """Return whether kubectl would find a kubeconfig by itself."""
    if environ.get("KUBECONFIG"):
        return True
    return (Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config").exists()
