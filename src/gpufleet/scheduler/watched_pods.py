"""The pods of the watch, without what the scheduler does not read.

It watches all pods, because they all use CPU and memory of nodes. Most have no claim. Of those it needs
only their requests, phase and node, and until they are bound also what restricts them to nodes.
A selector would not do: pods without a claim may get one while they wait, and finished pods release GPUs.

Of constraints that only kube-scheduler can check, such as spread constraints and volumes, it keeps whether there
are any, and of anti-affinity between pods the namespaces that it may exclude.
"""

from dataclasses import replace

from msgspec import Raw, field
from msgspec.structs import force_setattr

from gpufleet.kubernetes import PODS
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.client.resources import Resource
from gpufleet.kubernetes.nv_fractions import relevant
from gpufleet.kubernetes.objects import EMPTY, Affinity, Container, Fields, Pod, PodSpec

_OURS = "gpu.scheduling/"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_FREE_VOLUMES = frozenset(
    {"name", "configMap", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "projected", "secret"}
)
"""The fields of volumes that any node can mount."""

ALL_NAMESPACES = "*"


class _Port(Fields, frozen=True):
    host_port: int = 0


class _Container(Container, frozen=True):
    ports: tuple[_Port, ...] = ()


class _Anything(Fields, frozen=True):
    """An object of which only the presence matters."""


class _AffinityTerm(Fields, frozen=True):
    namespaces: tuple[str, ...] = ()
    namespace_selector: _Anything | None = None


class _PodAffinity(Fields, frozen=True):
    required: tuple[_AffinityTerm, ...] = field(default=(), name=_REQUIRED)


class _Affinity(Affinity, frozen=True):
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _SpreadConstraint(Fields, frozen=True):
    when_unsatisfiable: str = ""


class WatchedSpec(PodSpec, frozen=True):
    """The spec of a pod, with the constraints that only kube-scheduler can check reduced to two fields."""

    needs_kube_scheduler: bool = False
    """Whether the pod has constraints that are not checked here."""
    repels: tuple[str, ...] = ()
    """Namespaces with pods that anti-affinity of this pod may keep away; `*` if it may be any namespace."""
    affinity: _Affinity | None = None
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    volumes: tuple[dict[str, Raw], ...] = ()
    topology_spread_constraints: tuple[_SpreadConstraint, ...] = ()
    host_network: bool = False
    resources: _Anything | None = None

    def __post_init__(self) -> None:
        affinity = self.affinity or _NO_AFFINITY
        repelling = affinity.pod_anti_affinity.required if affinity.pod_anti_affinity else ()
        if repelling:
            force_setattr(self, "repels", _namespaces(repelling))
        containers = (*self.containers, *self.init_containers)
        needs = (
            self.needs_kube_scheduler  # of the pod that this is a copy of
            or bool(repelling)
            or (affinity.pod_affinity is not None and bool(affinity.pod_affinity.required))
            or any(each.when_unsatisfiable == "DoNotSchedule" for each in self.topology_spread_constraints)
            or any(not _FREE_VOLUMES.issuperset(volume) for volume in self.volumes)
            or any(port.host_port or self.host_network for each in containers for port in each.ports)
            or bool(self.resource_claims)
            or self.resources is not None  # of the pod as a whole; those of containers are counted
        )
        force_setattr(self, "needs_kube_scheduler", needs)
        for name in ("volumes", "topology_spread_constraints"):
            force_setattr(self, name, ())
        force_setattr(self, "resources", None)
        force_setattr(self, "affinity", Affinity(affinity.node_affinity) if affinity.node_affinity else None)
        for each in containers:
            force_setattr(each, "ports", ())
        super().__post_init__()


_NO_AFFINITY = _Affinity()


def _namespaces(terms: tuple[_AffinityTerm, ...]) -> tuple[str, ...]:
    """Return the namespaces in which the terms look for pods; an empty one is that of the pod."""
    found: set[str] = set()
    for term in terms:
        if term.namespace_selector is not None:
            return (ALL_NAMESPACES,)
        found.update(term.namespaces or ("",))
    return tuple(sorted(found))


class WatchedPod(Pod, frozen=True):
    """A pod that drops fields as soon as it is decoded."""

    spec: WatchedSpec = field(default_factory=WatchedSpec)

    def __post_init__(self) -> None:
        meta, spec, status = self.metadata, self.spec, self.status
        claimed = bool(meta.annotations.get(CLAIM))
        for name in ("container_statuses", "init_container_statuses"):
            force_setattr(status, name, ())
        # Whether kube-scheduler could place the pod, of those that wait for it.
        waits = claimed and not spec.node_name
        scheduled = (each for each in status.conditions if waits and each.type == "PodScheduled")
        force_setattr(status, "conditions", tuple(scheduled))
        if claimed:
            return
        kept = {name: value for name, value in meta.annotations.items() if name.startswith(_OURS)}
        kept |= relevant(meta.annotations)
        force_setattr(meta, "annotations", kept or EMPTY)
        force_setattr(meta, "labels", EMPTY)
        if spec.node_name:
            force_setattr(spec, "tolerations", ())
            force_setattr(spec, "node_selector", EMPTY)


WATCHED_PODS: Resource[Pod] = replace(PODS, type=WatchedPod)
