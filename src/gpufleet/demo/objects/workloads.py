"""Kubernetes objects of a simulated run, as its controllers, the webhook and the scheduler would have written them."""

from collections.abc import Iterator

from gpufleet.demo.objects.claims import claim, claim_status, parsed
from gpufleet.demo.objects.identities import (
    COST_CENTER,
    Json,
    Phase,
    intermediate_owner,
    pod_annotations,
    pods_of,
    root_owner,
    run_labels,
    uses_claims,
)
from gpufleet.demo.objects.owners import Replicas, owner, replicas_of
from gpufleet.demo.objects.pods import pod_object
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.timeline import Run
from gpufleet.kubernetes.annotations import kept_annotations
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.periods import AllocationPeriod


def workload_objects(
    run: Run, phase: Phase, hardware: Hardware, replicas: Replicas | None = None, note: str = ""
) -> list[Json]:
    """Return every object of a run in a phase, except leases: owners, claim, pods.

    `replicas` includes those that are runs of their own; `note` says why the run is pending.
    """
    pods = pods_of(run)
    found = owner_objects(run, phase, replicas or replicas_of(run, phase))
    requested = claim(run, pods) if uses_claims(run) else None
    if requested is not None and phase is not Phase.FINISHED:
        found.append({**requested, "status": claim_status(phase, pods, hardware, note)})
    admitted_with = parsed(requested) if requested is not None else None
    found += [pod_object(run, pod, phase, hardware, admitted_with, note) for pod in pods]
    return found


def owner_objects(run: Run, phase: Phase, replicas: Replicas) -> list[Json]:
    """Return the owners of a run's pods. An additional replica belongs to the owners of its base."""
    if run.base is not None:
        return []
    root, middle = root_owner(run), intermediate_owner(run)
    found: list[Json] = []
    if run.kind not in ("Pod", "CronJob"):
        found.append(owner(run, root, None, phase, replicas))
    if middle is not None:
        found.append(owner(run, middle, root, phase, replicas))
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
            share=pod.position.share,
            model=canonical_model(machine.model.name),
            held=pod.position.gpus,
            labels=run_labels(run),
            annotations=kept_annotations(pod_annotations(run, pod, hardware), (COST_CENTER,)),
            created=run.created,
            start=run.bound,
            end=run.ended if run.ended <= end else 0.0,
        )
