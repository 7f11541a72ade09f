"""What the written status of a repair asks for, compared with the state of the node. Pure."""

from dataclasses import dataclass

from gpufleet.kubernetes.crds.gpu_repair import RepairStatus
from gpufleet.repair.decide import PROVE, affected_pods, age_of, hook_of, is_out_of_service, whole_second
from gpufleet.repair.views import JOB_ABSENT, JOB_ACTIVE, NodeView, PodView, RepairRules

_EXCLUSIVE = ("reset", "reload-driver")
"""Repairs that fail while any process has the GPU open, also one that only monitors it."""
_RELEASE = 600.0
"""Seconds after which the agent opens the driver at the latest."""


@dataclass(frozen=True)
class SetTaint:
    """Add our taint."""


@dataclass(frozen=True)
class RemoveTaint:
    """Remove our taint."""


@dataclass(frozen=True)
class Announce:
    """Tell a pod when it will be evicted."""

    pod: PodView
    at: str


@dataclass(frozen=True)
class Evict:
    """Evict a pod."""

    pod: PodView


@dataclass(frozen=True)
class CreateJob:
    """Create the Job of this step."""

    name: str
    hook: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class ReleaseDriver:
    """Ask the agent to close the driver until then, or to open it again."""

    until: str | None


Action = SetTaint | RemoveTaint | Announce | Evict | ReleaseDriver | CreateJob


def actions(status: RepairStatus, node: NodeView, rules: RepairRules, now: float) -> list[Action]:
    """Return what the status asks for and is not done yet."""
    wanted = _taint_wanted(status, rules)
    found: list[Action] = []
    if wanted and not node.tainted:
        found.append(SetTaint())
    if not wanted and node.tainted:
        found.append(RemoveTaint())
    if status.phase == "Draining" and status.evict_at is not None:
        found += _evictions(status, node, rules, now)
    exclusive = status.phase == "Repairing" and hook_of(status.action) in _EXCLUSIVE
    release = exclusive and node.job in (JOB_ABSENT, JOB_ACTIVE)
    if release and not node.released:
        return [*found, ReleaseDriver(whole_second(now + _RELEASE).isoformat())]
    if node.released and not release:
        found.append(ReleaseDriver(None))
    if exclusive and age_of(status, now) < rules.release_lead:
        return found
    if (
        status.phase in ("Repairing", "Proving")
        and status.job
        and not status.job_seen
        and node.job == JOB_ABSENT
    ):
        hook = PROVE if status.phase == "Proving" else status.action
        found.append(CreateJob(status.job, hook, () if status.whole_node else status.gpus))
    return found


def _evictions(status: RepairStatus, node: NodeView, rules: RepairRules, now: float) -> list[Action]:
    assert status.evict_at is not None
    pods = [pod for pod in affected_pods(status, node, rules) if not pod.terminating]
    at = status.evict_at.isoformat()
    if now < status.evict_at.timestamp():
        return [Announce(pod, at) for pod in pods if pod.evict_at != at]
    return [] if node.blocked_by_budget else [Evict(pod) for pod in pods]


def _taint_wanted(status: RepairStatus, rules: RepairRules) -> bool:
    if not is_out_of_service(status):
        return False
    return status.whole_node or rules.taint_gpu_faults or status.phase not in ("Cordoned",)
