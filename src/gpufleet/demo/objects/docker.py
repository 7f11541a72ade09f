"""Containers of a simulated fleet, in the JSON of the Docker engine API.

One machine runs them. A container that exits stays for some hours; a service is removed when it ends.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from gpufleet.demo.simulation.hardware import Hardware, Machine
from gpufleet.demo.simulation.timeline import Run
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.periods import AllocationPeriod

Json = dict[str, Any]

EXITED_RETENTION_SECONDS = 6 * 3600.0
"""Seconds before an exited container is removed."""

_NEVER = "0001-01-01T00:00:00Z"


def host(hardware: Hardware) -> Machine | None:
    """Return the machine that runs containers, or None."""
    return next((machine for machine in hardware.machines if machine.source == "docker"), None)


def info(machine: Machine) -> Json:
    """Return the response to `/info`."""
    devices = [{"Source": "cdi", "ID": f"nvidia.com/gpu={gpu}"} for gpu in range(machine.gpus)]
    return {
        "Name": machine.name,
        "ServerVersion": VERSION["Version"],
        "OperatingSystem": "Ubuntu 24.04.3 LTS",
        "OSType": "linux",
        "DefaultRuntime": "runc",
        "DiscoveredDevices": devices,
    }


VERSION: Json = {
    "Version": "28.3.2",
    "ApiVersion": "1.51",
    "MinAPIVersion": "1.24",
    "Os": "linux",
    "Arch": "amd64",
    "Components": [{"Name": "Engine", "Version": "28.3.2"}],
}


def containers(runs: Iterable[Run], at: float) -> dict[str, Json]:
    """Return every container at a time, by id, as `inspect` shows it."""
    return {run.uid: _container(run, at) for run in runs if _exists(run, at)}


def row(container: Json) -> Json:
    """Return a container as the list shows it."""
    state = container["State"]["Status"]
    return {
        "Id": container["Id"],
        "Names": [container["Name"]],
        "Image": container["Config"]["Image"],
        "Command": " ".join(container["Config"]["Cmd"]),
        "Created": int(datetime.fromisoformat(container["Created"]).timestamp()),
        "State": state,
        "Status": {"created": "Created", "running": "Up"}.get(
            state, f"Exited ({container['State']['ExitCode']})"
        ),
        "Labels": container["Config"]["Labels"],
        "Ports": [],
    }


def allocation_periods(run: Run, hardware: Hardware, end: float) -> Iterator[AllocationPeriod]:
    """Yield the allocation period of a container, as the Docker source records it."""
    (position,) = run.slot.positions
    machine = hardware.machines[position.node]
    yield AllocationPeriod(
        pod_uid=run.uid,
        pod=run.name,
        namespace=_compose_project(run),
        node=machine.name,
        workload_uid=run.uid,
        workload_kind="Container",
        workload_name=run.name,
        source="docker",
        gpus=len(position.gpus),
        share=1.0,
        model=canonical_model(machine.model.name),
        held=position.gpus,
        labels=_labels(run),
        annotations={"docker/image": run.project.image},
        created=run.created,
        start=run.bound,
        end=run.ended if run.ended <= end else 0.0,
    )


def _exists(run: Run, at: float) -> bool:
    kept = EXITED_RETENTION_SECONDS if run.slot.role.finishes else 0.0
    return run.slot.role.source == "docker" and run.created <= at < run.ended + kept


def _container(run: Run, at: float) -> Json:
    status = "created" if at < run.bound else "running" if at < run.ended else "exited"
    (position,) = run.slot.positions
    request = {
        "Driver": "nvidia",
        "Count": 0,
        "DeviceIDs": [str(gpu) for gpu in position.gpus],
        "Capabilities": [["gpu"]],
    }
    return {
        "Id": run.uid,
        "Name": f"/{run.name}",
        "Created": _time(run.created),
        "State": {
            "Status": status,
            "ExitCode": 1 if status == "exited" and run.fails else 0,
            "StartedAt": _NEVER if status == "created" else _time(run.bound),
            "FinishedAt": _time(run.ended) if status == "exited" else _NEVER,
        },
        "HostConfig": {"Runtime": "runc", "DeviceRequests": [request], "Devices": []},
        "Config": {
            "Image": run.project.image,
            "Cmd": run.project.command.split(),
            "Env": [],
            "Labels": _labels(run),
            "User": run.user,
        },
    }


def _labels(run: Run) -> dict[str, str]:
    return {
        "com.docker.compose.project": _compose_project(run),
        "team": run.team.name,
        "project": run.project.name,
        "user": run.user,
    }


def _compose_project(run: Run) -> str:
    return f"{run.team.name}-lab"


def _time(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
