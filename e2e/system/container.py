"""Translate a container of the charts into a program that runs on this machine.

Arguments and environment are those of the container. Its volumes are directories, whose paths replace the mount
paths wherever they occur. Its service account is a kubeconfig. It listens on free ports of 127.0.0.1.
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
    """A command, its environment, and the addresses it listens on."""

    command: list[str]
    environment: dict[str, str]
    ports: Mapping[str, int]
    """Local ports by the names of the container's ports."""
    port: int
    """The port of the probes."""
    scheme: str
    live: str
    ready: str

    @property
    def url(self) -> str:
        """The address of the probes."""
        return f"{self.scheme}://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class ContainerContext:
    """What a container gets from its pod: variables, volumes, service account, and access to Services."""

    cluster: Cluster
    identity: Identity
    variables: Mapping[str, str]
    mounts: Mapping[str, Path]
    service: Callable[[str, int], int]
    """Returns the local port of a Service, by its DNS name and port."""

    def local(self, text: str) -> str:
        """Replace mount paths in `text` by paths of this machine."""
        longest_first = sorted(self.mounts, key=len, reverse=True)
        mount_paths = re.compile(
            rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first)) or '(?!)'})(?![\w.-])"
        )
        return mount_paths.sub(lambda found: str(self.mounts[found[1]]), text)


def program(container: Json, context: ContainerContext) -> Program:
    """Return the program for a container of gpufleet or of kube-scheduler."""
    names = [each["name"] for each in container["ports"]]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    probe = container["readinessProbe"]["httpGet"]
    base = Program(
        command=[],
        environment=context.cluster.commands.environment(context.identity),
        ports=ports,
        port=ports[probe["port"]],
        scheme=probe.get("scheme", "HTTP").lower(),
        live=container["livenessProbe"]["httpGet"]["path"],
        ready=probe["path"],
    )
    if container.get("command") == ["kube-scheduler"]:
        return _kube_scheduler(base, container, context)
    return _gpufleet(base, container, context)


def _gpufleet(base: Program, container: Json, context: ContainerContext) -> Program:
    variables = {name: context.local(value) for name, value in context.variables.items()}
    local = {str(each["containerPort"]): str(base.ports[each["name"]]) for each in container["ports"]}
    for name, value in variables.items():
        if name.startswith("GPUFLEET_") and name.endswith("_HOST") and value == "0.0.0.0":
            variables[name] = "127.0.0.1"
        if name.startswith("GPUFLEET_") and name.endswith("_PORT"):
            variables[name] = local[value]
    command = [sys.executable, "-m", "gpufleet", *container["args"]]
    # Settings in the environment of the test runner must not reach the container.
    inherited = {name: value for name, value in base.environment.items() if not name.startswith("GPUFLEET_")}
    return replace(base, command=command, environment={**inherited, **variables})


def _kube_scheduler(base: Program, container: Json, context: ContainerContext) -> Program:
    kubeconfig = str(context.identity.kubeconfig)
    arguments = [context.local(each) for each in container["args"] if not each.startswith("--secure-port")]
    [config] = [each for each in arguments if each.startswith("--config=")]
    file = Path(config.removeprefix("--config="))
    configuration = yaml.safe_load(context.local(file.read_text()))
    configuration["clientConnection"] = {
        **configuration.get("clientConnection", {}),
        "kubeconfig": kubeconfig,
    }
    for extender in configuration["extenders"]:
        if "bindVerb" not in extender:
            continue  # never called
        address = urlsplit(extender["urlPrefix"])
        port = context.service(str(address.hostname), int(address.port or 80))
        extender["urlPrefix"] = f"{address.scheme}://127.0.0.1:{port}"
    local = file.with_name(f"local-{base.port}.json")
    local.write_text(json.dumps(configuration))
    command = [
        str(context.cluster.binaries.scheduler),
        *(each for each in arguments if each != config),
        f"--config={local}",
        "--bind-address=127.0.0.1",
        f"--secure-port={base.port}",
        f"--cert-dir={file.parent / str(base.port)}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]
    return replace(base, command=command)
