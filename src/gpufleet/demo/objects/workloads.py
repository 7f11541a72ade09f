"""Kubernetes objects of a simulated run, as its controllers would have written them."""

from collections.abc import Iterator

from gpufleet.demo.objects.claims import claim, leases
from gpufleet.demo.objects.identities import (
    Json,
    Phase,
    intermediate_owner,
    pod_annotations,
    pods_of,
    root_owner,
    run_labels,
    uses_claims,
)
from gpufleet.demo.objects.owners import owner
from gpufleet.demo.objects.pods import pod_object
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.timeline import Run
from gpufleet.model.periods import AllocationPeriod


def workload_objects(run: Run, phase: Phase, hardware: Hardware, lease_namespace: str) -> list[Json]:
    """Return every object of a run in a phase: owners, claim, leases, pods.

    Leases come before their pods, because the scheduler recreates leases missing under a running pod.
    """
    pods = pods_of(run)
    root, middle = root_owner(run), intermediate_owner(run)
    found: list[Json] = []
    if run.kind not in ("Pod", "CronJob"):
        found.append(owner(run, root, None, phase))
    if middle is not None:
        found.append(owner(run, middle, root, phase))
    if uses_claims(run) and phase is not Phase.FINISHED:
        found.append(claim(run, phase, pods, hardware))
    if uses_claims(run) and phase in (Phase.STARTING, Phase.RUNNING):
        found += [lease for pod in pods for lease in leases(run, pod, hardware, lease_namespace)]
    found += [pod_object(run, pod, phase, hardware) for pod in pods]
    return found


def allocation_periods(run: Run, hardware: Hardware, end: float) -> Iterator[AllocationPeriod]:
    """Yield the allocation periods of the pods of a run, as the Kubernetes source records them at `end`."""
    for pod in pods_of(run):
        machine = hardware.machines[pod.position.node]
        yield AllocationPeriod(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=run.team.namespace,
            node=machine.name,
            workload_uid=pod.root.uid,
            workload_kind=pod.root.kind,
            workload_name=pod.root.name,
            source="k8s",
            gpus=len(pod.position.gpus),
            share=1.0,
            model=machine.model.name.replace(" ", "_"),
            held=pod.position.gpus,
            labels=run_labels(run),
            annotations=pod_annotations(run, pod, hardware),
            start=run.bound,
            end=run.ended if run.ended <= end else 0.0,
        )
