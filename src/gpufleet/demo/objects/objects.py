"""The runs of a simulated fleet as Kubernetes shows them: owners, pods, claims and leases.

Each object is what its controller would have made of it by then.
"""

from collections.abc import Iterator

from gpufleet.demo.objects.claims import claim, leases
from gpufleet.demo.objects.owners import owner
from gpufleet.demo.objects.pods import pod_object
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.identities import (
    Json,
    Phase,
    annotations_of_pod,
    labels_of,
    middle_of,
    pods_of,
    root_of,
    uses_claims,
)
from gpufleet.demo.simulation.timeline import Run
from gpufleet.model.periods import AllocationPeriod


def objects_of(run: Run, phase: Phase, hardware: Hardware, leases_in: str) -> list[Json]:
    """Every object of a run in a phase of its life: owners, claim, leases, pods.

    Leases stand before the pods that have them: a scheduler writes anew what a running pod lacks.
    """
    pods = pods_of(run)
    root, middle = root_of(run), middle_of(run)
    found: list[Json] = []
    if run.kind not in ("Pod", "CronJob"):
        found.append(owner(run, root, None, phase))
    if middle is not None:
        found.append(owner(run, middle, root, phase))
    if uses_claims(run) and phase is not Phase.FINISHED:
        found.append(claim(run, phase, pods, hardware))
    if uses_claims(run) and phase in (Phase.STARTING, Phase.RUNNING):
        found += [lease for pod in pods for lease in leases(run, pod, hardware, leases_in)]
    found += [pod_object(run, pod, phase, hardware) for pod in pods]
    return found


def holdings(run: Run, hardware: Hardware, end: float) -> Iterator[AllocationPeriod]:
    """Which GPUs the pods of a run held, as the source of Kubernetes tells it at `end`."""
    for pod in pods_of(run):
        machine = hardware.machines[pod.place.node]
        yield AllocationPeriod(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=run.team.namespace,
            node=machine.name,
            workload_uid=pod.root.uid,
            workload_kind=pod.root.kind,
            workload_name=pod.root.name,
            source="k8s",
            gpus=len(pod.place.gpus),
            share=1.0,
            model=machine.model.name.replace(" ", "_"),
            held=pod.place.gpus,
            labels=labels_of(run),
            annotations=annotations_of_pod(run, pod, hardware),
            start=run.bound,
            end=run.ended if run.ended <= end else 0.0,
        )
