"""Slurm jobs and nodes of a simulated fleet, in the JSON of slurmrestd (data format 0.0.41, Slurm 24.05).

Like a real controller, it drops jobs some minutes after their end, and the accounting database
counts the GPUs of ended jobs without naming them.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from gpufleet.demo.simulation.hardware import Hardware, Machine
from gpufleet.demo.simulation.timeline import Run, SlotPosition
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.periods import AllocationPeriod

Json = dict[str, Any]

FORMAT = "v0.0.41"
MIN_JOB_AGE = 300.0
"""Seconds for which the controller lists an ended job."""


def jobs(runs: Iterable[Run], hardware: Hardware, at: float) -> list[Json]:
    """Return the jobs that the controller lists at a time. Runs of other sources are skipped."""
    return [
        _job(run, hardware, at)
        for run in runs
        if run.slot.role.source == "slurm" and run.created <= at < run.ended + MIN_JOB_AGE
    ]


def past_jobs(runs: Iterable[Run], hardware: Hardware, at: float) -> list[Json]:
    """Return the jobs in the accounting database."""
    return [
        _past_job(run, hardware, at) for run in runs if run.slot.role.source == "slurm" and run.bound <= at
    ]


def nodes(runs: Iterable[Run], hardware: Hardware, at: float) -> list[Json]:
    """Return every Slurm node at a time."""
    used: dict[int, int] = {}
    for run in runs:
        if run.slot.role.source == "slurm" and run.bound <= at < run.ended:
            for position in run.slot.positions:
                used[position.node] = used.get(position.node, 0) + len(position.gpus)
    return [
        _node(machine, used.get(machine.number, 0))
        for machine in hardware.machines
        if machine.source == "slurm"
    ]


def allocation_periods(run: Run, hardware: Hardware, end: float) -> Iterator[AllocationPeriod]:
    """Yield the allocation periods of a job, as the Slurm source records them at `end`."""
    state = "RUNNING" if run.ended > end else _ending(run)
    for number, position in enumerate(run.slot.positions):
        machine = hardware.machines[position.node]
        yield AllocationPeriod(
            pod_uid=f"{run.uid}-{number}",
            pod=f"{run.job_id}-{machine.name}",
            namespace=run.team.name,
            node=machine.name,
            workload_uid=run.uid,
            workload_kind="SlurmJob",
            workload_name=run.name,
            source="slurm",
            gpus=len(position.gpus),
            share=1.0,
            model=canonical_model(machine.model.name),
            held=position.gpus,
            labels={
                "slurm/user": run.user,
                "slurm/account": run.team.name,
                "slurm/partition": _partition(run),
                "slurm/qos": "normal",
            },
            annotations={"slurm/job-id": str(run.job_id), "slurm/state": state},
            created=run.created,
            start=run.bound,
            end=run.ended if run.ended <= end else 0.0,
        )


def _job(run: Run, hardware: Hardware, at: float) -> Json:
    queued, ended = at < run.bound, run.ended <= at
    state = "PENDING" if queued else _ending(run) if ended else "RUNNING"
    positions = () if queued else run.slot.positions
    job = {
        "job_id": run.job_id,
        "name": run.name,
        "job_state": [state],
        "state_reason": "Resources" if queued else "None",
        "user_name": run.user,
        "account": run.team.name,
        "partition": _partition(run),
        "qos": "normal",
        "nodes": _names(positions, hardware),
        "node_count": _number(len(run.slot.positions)),
        "tasks": _number(run.slot.gpus),
        "command": run.project.command,
        "array_job_id": _number(0),
        "array_task_id": _number(None),
        "het_job_id": _number(0),
        "het_job_offset": _number(0),
        # Set only while the job runs, as by a real controller.
        "gres_detail": [] if ended else [_detail(position, hardware) for position in positions],
        "tres_req_str": _tres(run),
        "tres_alloc_str": "" if queued else _tres(run),
        "submit_time": _number(run.created),
        "start_time": _number(run.bound if run.bound < math.inf else None),  # of a queued job: expected
        "end_time": _number(run.ended if ended else None),
        "restart_cnt": 0,
    }
    return job


def _past_job(run: Run, hardware: Hardware, at: float) -> Json:
    ended = run.ended <= at
    gpus = [{"type": "gres", "name": "gpu", "id": 1001, "count": run.slot.gpus}]
    return {
        "job_id": run.job_id,
        "name": run.name,
        "state": {"current": [_ending(run) if ended else "RUNNING"], "reason": "None"},
        "user": run.user,
        "account": run.team.name,
        "partition": _partition(run),
        "qos": "normal",
        "nodes": _names(run.slot.positions, hardware),
        "array": {"job_id": 0, "task_id": _number(None)},
        "het": {"job_id": 0, "job_offset": _number(None)},
        "tres": {"allocated": gpus, "requested": gpus},
        "time": {
            "submission": int(run.created),
            "start": int(run.bound),
            "end": int(run.ended) if ended else 0,
        },
    }


def _node(machine: Machine, used: int) -> Json:
    state = "IDLE" if not used else "ALLOCATED" if used == machine.gpus else "MIXED"
    return {
        "name": machine.name,
        "hostname": machine.name,
        "address": machine.address,
        "architecture": "x86_64",
        "state": [state],
        "reason": "",
        "partitions": ["gpu", "interactive"],
        "active_features": [machine.model.short],
        "gres": f"gpu:{_type(machine)}:{machine.gpus}",
        "boot_time": _number(machine.created),
        "version": "24.05.3",
    }


def _ending(run: Run) -> str:
    return "FAILED" if run.fails else "COMPLETED"


def _partition(run: Run) -> str:
    return "interactive" if run.slot.role.load == "idle" else "gpu"


def _type(machine: Machine) -> str:
    return machine.model.name.replace(" ", "_")


def _names(positions: Iterable[SlotPosition], hardware: Hardware) -> str:
    return ",".join(hardware.machines[position.node].name for position in positions)


def _detail(position: SlotPosition, hardware: Hardware) -> str:
    indices = ",".join(map(str, position.gpus))
    return f"gpu:{_type(hardware.machines[position.node])}:{len(position.gpus)}(IDX:{indices})"


def _tres(run: Run) -> str:
    return f"cpu={8 * run.slot.gpus},node={len(run.slot.positions)},billing=1,gres/gpu={run.slot.gpus}"


def _number(value: float | None) -> Json:
    there = value is not None and math.isfinite(value)
    return {"set": there, "infinite": False, "number": int(value or 0) if there else 0}
