"""What a container of the charts would run, as a program of this machine.

Arguments and environment are the container's own. What a machine gives a container is given here: its volumes are
folders, whose paths take the place of the mount paths wherever those occur; its service account is a kubeconfig;
its address is 127.0.0.1, on a free port.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from e2e.cluster import Cluster, Identity
from e2e.cluster.cluster import free_ports

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A command, its environment, and where it listens."""

    command: list[str]
    environment: dict[str, str]
    port: int
    scheme: str
    live: str
    ready: str

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.scheme}://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class ContainerContext:
    """What the container finds: its variables, volumes, account, and other Services."""

    cluster: Cluster
    identity: Identity
    variables: Mapping[str, str]
    mounts: Mapping[str, Path]
    service: Callable[[str, int], int]
    """The local port of a Service, by its DNS name and port."""

    def local(self, text: str) -> str:
        """The text with paths of this machine."""
        longest_first = sorted(self.mounts, key=len, reverse=True)
        mounted = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first)) or '(?!)'})(?![\w.-])")
        return mounted.sub(lambda found: str(self.mounts[found[1]]), text)


def program(container: Json, context: ContainerContext) -> Program:
    """The program that stands for a container of gpufleet or for a kube-scheduler."""
    [port] = free_ports(1)
    probe = container["readinessProbe"]["httpGet"]
    made = Program(
        command=[],
        environment=context.cluster.commands.environment(context.identity),
        port=port,
        scheme=probe.get("scheme", "HTTP").lower(),
        live=container["livenessProbe"]["httpGet"]["path"],
        ready=probe["path"],
    )
    if container.get("command") == ["kube-scheduler"]:
        return _kube_scheduler(made, container, context)
    return _gpufleet(made, container, context)


def _gpufleet(made: Program, container: Json, context: ContainerContext) -> Program:
    variables = {name: context.local(value) for name, value in context.variables.items()}
    for name, value in variables.items():
        if name.startswith("GPUFLEET_") and name.endswith("_HOST") and value == "0.0.0.0":
            variables[name] = "127.0.0.1"
            variables[name.removesuffix("HOST") + "PORT"] = str(made.port)
    command = [sys.executable, "-m", "gpufleet", *container["args"]]
    # What the test runner's own environment says is not the container's.
    inherited = {name: value for name, value in made.environment.items() if not name.startswith("GPUFLEET_")}
    return replace(made, command=command, environment={**inherited, **variables})


def _kube_scheduler(made: Program, container: Json, context: ContainerContext) -> Program:
    kubeconfig = str(context.identity.kubeconfig)
    arguments = [context.local(each) for each in container["args"] if not each.startswith("--secure-port")]
    [given] = [each for each in arguments if each.startswith("--config=")]
    file = Path(given.removeprefix("--config="))
    configuration = yaml.safe_load(file.read_text())
    configuration["clientConnection"] = {
        **configuration.get("clientConnection", {}),
        "kubeconfig": kubeconfig,
    }
    for extender in configuration["extenders"]:
        address = urlsplit(extender["urlPrefix"])
        port = context.service(str(address.hostname), int(address.port or 80))
        extender["urlPrefix"] = f"http://127.0.0.1:{port}"
    local = file.with_name(f"local-{made.port}.json")
    local.write_text(json.dumps(configuration))
    command = [
        str(context.cluster.binaries.scheduler),
        *(each for each in arguments if each != given),
        f"--config={local}",
        "--bind-address=127.0.0.1",
        f"--secure-port={made.port}",
        f"--cert-dir={file.parent / str(made.port)}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]
    return replace(made, command=command)
