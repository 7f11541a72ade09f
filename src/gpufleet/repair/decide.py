"""Decide the next step of a node's repair: a pure state machine.

`next_status` returns the status to write; `actions` (in the module beside) what the written status asks for. Every action is
safe to repeat: a taint and an annotation are compared first, an eviction names the uid of the pod, and a Job has a name that
only this step has. So a process may be killed between any two calls, and the next one continues.

    Healthy → Observed → Cordoned → Draining → Drained → Repairing → Proving → Healthy
                                                    ↘ Manual ↗ (after an operator resumed)
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha1

from msgspec import structs

from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus
from gpufleet.kubernetes.crds.gpu_repair import Episode, Phase, RepairStatus
from gpufleet.repair.views import (
    JOB_ABSENT,
    JOB_ACTIVE,
    JOB_FAILED,
    JOB_SUCCEEDED,
    ClusterView,
    NodeView,
    PodView,
    Policy,
    RepairRules,
)

PROVE = "prove"
"""Name of the Job template that tests GPUs."""
DISRUPTED: frozenset[Phase] = frozenset({"Draining", "Drained", "Repairing", "Proving", "Manual"})
"""Phases that count for the disruption budget."""
_ESCALATION = ("reset", "reload-driver", "reboot", "vendor")
"""Repairs in order of effort; the next one is tried when one did not help."""
_HOOKS = {"drain-and-reset": "reset", "drain": "reset", "replace": "vendor", "none": ""}
"""Which template stands for an action that has none of its own."""
_MAX_HISTORY, _MAX_STEPS = 50, 40


def next_status(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    """Return the status that the node should have now; the same object if nothing changes."""
    status = _observed(status, node, now)
    if status.phase == "Healthy":
        return _open(status, node, rules, now) if node.findings else status
    if rules.policy is Policy.OBSERVE and status.phase != "Observed":
        return _enter(status, "Observed", now, "the policy is observe")
    return _STEPS[status.phase](status, node, cluster, rules, now)


def affected_pods(status: RepairStatus, node: NodeView, rules: RepairRules) -> list[PodView]:
    """Return the pods that must leave: those on affected GPUs or in the way of the repair, with their whole gangs."""
    action = hook_of(status.action) if rules.policy is Policy.REPAIR else ""
    here = [pod for pod in node.pods if pod.node == node.name and not pod.permanent]
    if action == "reboot":
        hit = here
    elif action == "reload-driver" or status.whole_node:
        hit = [pod for pod in here if pod.gpus]
    else:
        hit = [pod for pod in here if pod.gpus & set(status.gpus)]
    gangs = {pod.gang for pod in hit if pod.gang is not None}
    uids = {pod.uid for pod in hit} | set(status.pods)
    return [pod for pod in node.pods if pod.uid in uids or (pod.gang is not None and pod.gang in gangs)]


def allowed(cluster: ClusterView, rules: RepairRules, now: float) -> str:
    """Return why the disruption budget forbids another drain, or an empty string."""
    most = max(1, int(cluster.nodes * rules.max_share / 100))
    if cluster.disrupted >= most:
        return f"{cluster.disrupted} of at most {most} nodes are out of service (repair.max_share)"
    recent = sum(now - started < 3600 for started in cluster.drains)
    if recent >= rules.max_per_hour:
        return f"{recent} nodes were drained in the last hour (repair.max_per_hour)"
    return ""


def is_disrupted(status: RepairStatus) -> bool:
    """Return whether the node counts for the disruption budget: Manual does after a drain."""
    return status.phase in DISRUPTED and (status.phase != "Manual" or status.drain_started is not None)


def is_out_of_service(status: RepairStatus) -> bool:
    """Return whether no new pod may come to the affected GPUs."""
    return status.phase not in ("Healthy", "Observed")


def drains_of(status: RepairStatus) -> list[datetime]:
    """Return when drains of the node started, the present one included."""
    times = [status.drain_started, *(episode.drain_started for episode in status.history)]
    return [each for each in times if each is not None]


def job_name(node: str, number: int, hook: str, uid: str = "") -> str:
    """Return the name of a Job, which no other step of any node has."""
    return f"gpufleet-{hook[:16]}-{sha1(f'{node}/{uid}'.encode()).hexdigest()[:12]}-{number}"  # noqa: S324


def _open(status: RepairStatus, node: NodeView, rules: RepairRules, now: float) -> RepairStatus:
    first = node.findings[0]
    status = structs.replace(
        status,
        episode=status.episode + 1,
        cause=first.signal,
        cause_message=first.message,
        opened=whole_second(now),
        clear_since=None,
        action=_action(node.findings),
        attempts=0,
        passes=0,
        must_repair=False,
        drain_started=None,
        evict_at=None,
        steps=(),
    )
    status = _observed(structs.replace(status, gpus=(), whole_node=False), node, now)
    if rules.policy is Policy.OBSERVE:
        return _enter(status, "Observed", now, first.message)
    recent = sum(now - episode.opened.timestamp() < rules.flap_window for episode in status.history)
    if recent >= rules.flap_limit:
        reason = (
            f"{recent + 1} faults in {rules.flap_window / 3600:g} hours: a human must look (docs/repair.md)"
        )
        return _enter(status, "Manual", now, reason)
    return _enter(status, "Cordoned", now, first.message)


def _observed(status: RepairStatus, node: NodeView, now: float) -> RepairStatus:
    """Add newly affected GPUs, and note since when there is no finding."""
    if status.opened is None:
        return status
    gpus, whole = set(status.gpus), status.whole_node
    for finding in node.findings:
        if finding.scope == "GPU" and finding.gpu is not None:
            gpus.add(finding.gpu)
        else:
            whole = True
    if whole:
        gpus |= set(node.gpus)
    clear = None if node.findings or node.unknown & gpus else status.clear_since or whole_second(now)
    action = status.action
    if node.findings and status.phase in ("Observed", "Cordoned", "Healthy"):
        action = _action(node.findings)
    new = structs.replace(
        status, gpus=tuple(sorted(gpus)), whole_node=whole, clear_since=clear, action=action
    )
    return status if new == status else new


def _while_observed(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    if _settled(status, rules, now):
        return _close(status, node, now, "the finding is gone")
    if rules.policy is not Policy.OBSERVE:
        return _enter(status, "Cordoned", now, status.cause_message)
    return status


def _while_cordoned(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    if _settled(status, rules, now):
        return _prove(status, node, rules, now)
    if rules.policy < Policy.DRAIN or status.clear_since is not None:
        return status
    refused = allowed(cluster, rules, now)
    if refused:
        return _say(status, f"waiting for the disruption budget: {refused}")
    return _drain(status, affected_pods(status, node, rules), rules, now)


def _while_draining(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    if rules.policy < Policy.DRAIN:
        return _enter(status, "Cordoned", now, "the policy is cordon")
    pods = affected_pods(status, node, rules)
    if not pods and not (node.in_use & set(status.gpus)):
        return _enter(status, "Drained", now, "all affected pods have left")
    if age_of(status, now) > rules.drain_timeout + rules.max_grace:
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods[:5])
        return _enter(status, "Manual", now, f"pods did not leave: {names or 'processes remain'}")
    if new := {pod.uid for pod in pods} - set(status.pods):
        return structs.replace(status, pods=tuple(sorted({*status.pods, *new})))
    if node.blocked_by_budget:
        return _say(status, f"a PodDisruptionBudget does not allow that {_pods(pods)} leave together")
    return _say(status, f"{_pods(pods)} must leave")


def _while_drained(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    if rules.policy is Policy.REPAIR and (status.must_repair or status.clear_since is None):
        return _repair(status, node, rules, now)
    return _prove(status, node, rules, now) if _settled(status, rules, now) else status


def _while_repairing(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    if rules.policy < Policy.REPAIR:
        return _enter(status, "Drained", now, "the policy is drain")
    rebooted = bool(node.boot_id) and bool(status.boot_id) and node.boot_id != status.boot_id
    if (node.job == JOB_SUCCEEDED or rebooted) and _settled(status, rules, now) and node.ready:
        status = _step(status, f"{status.action} done", now)
        return _prove(status, node, rules, now)
    lost = status.job_seen and node.job == JOB_ABSENT
    failed = (node.job == JOB_FAILED or lost) and not rebooted and status.action != "reboot"
    if failed or age_of(status, now) > rules.repair_timeout:
        status = _step(status, f"{status.action} did not help", now)
        return _repair(structs.replace(status, action=_harder(status.action, rules)), node, rules, now)
    if node.job != JOB_ABSENT and not status.job_seen:
        return structs.replace(status, job_seen=True)
    return status


def _while_proving(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    if status.clear_since is None:
        status = _step(structs.replace(status, passes=0), "the fault returned while it was tested", now)
        return _enter(status, "Cordoned", now, "the fault returned while it was tested")
    lost = status.job_seen and node.job == JOB_ABSENT
    if node.job == JOB_SUCCEEDED:
        passes = status.passes + 1
        status = _step(structs.replace(status, passes=passes), f"test {passes} passed", now)
        if passes >= rules.proofs:
            return _close(status, node, now, "all tests passed")
        return _start_job(status, node, "Proving", PROVE, now)
    if node.job == JOB_FAILED or lost or age_of(status, now) > rules.repair_timeout:
        status = _step(structs.replace(status, passes=0), "the test failed", now)
        if rules.policy is Policy.REPAIR:
            return _repair(structs.replace(status, action=_harder(status.action, rules)), node, rules, now)
        return _enter(status, "Manual", now, "the test failed")
    if node.job == JOB_ACTIVE and not status.job_seen:
        return structs.replace(status, job_seen=True)
    return status


def _while_manual(
    status: RepairStatus, node: NodeView, cluster: ClusterView, rules: RepairRules, now: float
) -> RepairStatus:
    since = status.since.timestamp() if status.since else 0.0
    if node.resumed_at <= since:
        return status
    if status.clear_since is None:
        return _say(status, "resumed by an operator, but the fault is still there")
    status = structs.replace(status, attempts=0, passes=0)
    return _prove(_step(status, "resumed by an operator", now), node, rules, now)


_STEPS = {
    "Observed": _while_observed,
    "Cordoned": _while_cordoned,
    "Draining": _while_draining,
    "Drained": _while_drained,
    "Repairing": _while_repairing,
    "Proving": _while_proving,
    "Manual": _while_manual,
}


def _pods(pods: Sequence[PodView]) -> str:
    return f"{len(pods)} pod{'s' if len(pods) != 1 else ''}"


def _drain(status: RepairStatus, pods: Sequence[PodView], rules: RepairRules, now: float) -> RepairStatus:
    grace = max((min(pod.grace, rules.max_grace) for pod in pods), default=0.0)
    status = _enter(status, "Draining", now, f"{_pods(pods)} must leave, in {grace:g} s")
    started = status.drain_started or whole_second(now)
    uids = tuple(sorted(pod.uid for pod in pods))
    return structs.replace(status, drain_started=started, evict_at=whole_second(now + grace), pods=uids)


def _repair(status: RepairStatus, node: NodeView, rules: RepairRules, now: float) -> RepairStatus:
    """Start the next repair, or hand the node to a human."""
    if status.attempts >= rules.max_attempts:
        return _enter(status, "Manual", now, f"{status.attempts} repairs did not help")
    hook = hook_of(status.action)
    if hook not in rules.hooks:
        return _enter(status, "Manual", now, f"there is no Job template for {status.action or 'this fault'}")
    status = structs.replace(status, action=hook, passes=0, must_repair=True)
    if pods := affected_pods(
        status, node, rules
    ):  # a harder repair needs more pods to leave than the one before
        return _drain(status, pods, rules, now)
    status = structs.replace(status, attempts=status.attempts + 1, boot_id=node.boot_id, must_repair=False)
    return _start_job(status, node, "Repairing", hook, now)


def _prove(status: RepairStatus, node: NodeView, rules: RepairRules, now: float) -> RepairStatus:
    """Start the tests as soon as no pod uses the GPUs."""
    if rules.proofs <= 0:
        return _close(status, node, now, "the finding is gone, and no test is required")
    if PROVE not in rules.hooks:
        return _enter(status, "Manual", now, "there is no Job template for the test")
    busy = node.in_use & set(status.gpus)
    if busy:
        waiting = f"the test waits for pods on GPU {', '.join(map(str, sorted(busy)))}"
        return _say(status, waiting) if status.phase != "Manual" else _enter(status, "Cordoned", now, waiting)
    return _start_job(structs.replace(status, passes=0), node, "Proving", PROVE, now)


def _start_job(status: RepairStatus, node: NodeView, phase: Phase, hook: str, now: float) -> RepairStatus:
    number = status.jobs + 1
    status = structs.replace(
        status, jobs=number, job=job_name(node.name, number, hook, node.repair_uid), job_seen=False
    )
    return _enter(status, phase, now, f"Job {status.job}")


def _enter(status: RepairStatus, phase: Phase, now: float, message: str) -> RepairStatus:
    if phase not in ("Repairing", "Proving"):
        status = structs.replace(status, job="", job_seen=False)
    if phase not in ("Draining",):
        status = structs.replace(status, evict_at=None, pods=())
    status = structs.replace(status, phase=phase, since=whole_second(now), message=message)
    return _step(status, f"{phase}: {message}", now)


def _close(status: RepairStatus, node: NodeView, now: float, message: str) -> RepairStatus:
    """End the episode and keep it in the history."""
    status = _step(status, message, now)
    episode = Episode(
        cause=status.cause,
        opened=status.opened or whole_second(now),
        closed=whole_second(now),
        message=status.cause_message,
        gpus=len(status.gpus),
        model=node.model,
        steps=status.steps,
        drain_started=status.drain_started,
    )
    return RepairStatus(
        since=whole_second(now),
        message=message,
        episode=status.episode,
        jobs=status.jobs,
        history=(*status.history, episode)[-_MAX_HISTORY:],
    )


def _settled(status: RepairStatus, rules: RepairRules, now: float) -> bool:
    return status.clear_since is not None and now - status.clear_since.timestamp() >= rules.settle


def _say(status: RepairStatus, message: str) -> RepairStatus:
    return status if status.message == message else structs.replace(status, message=message)


def _step(status: RepairStatus, text: str, now: float) -> RepairStatus:
    line = f"{whole_second(now).isoformat(timespec='seconds')} {text}"[:300]
    return structs.replace(status, steps=(*status.steps, line)[-_MAX_STEPS:])


def _action(findings: Sequence[FindingStatus]) -> str:
    """Return the action with the most effort that a finding asks for."""
    order = ("", "none", "drain", "reset", "drain-and-reset", "reload-driver", "reboot", "replace")
    return max(
        (finding.action for finding in findings), key=lambda each: order.index(each) if each in order else 1
    )


def hook_of(action: str) -> str:
    """Return the Job template of an action."""
    return _HOOKS.get(action, action)


def _harder(action: str, rules: RepairRules) -> str:
    """Return the next repair that has a template; the same one if there is none."""
    hook = hook_of(action)
    later: Iterable[str] = _ESCALATION[_ESCALATION.index(hook) + 1 :] if hook in _ESCALATION else ()
    return next((each for each in later if each in rules.hooks), hook)


def age_of(status: RepairStatus, now: float) -> float:
    """Return the seconds since the phase began."""
    return now - status.since.timestamp() if status.since else 0.0


def whole_second(now: float) -> datetime:
    """Return the time without fractions, as Kubernetes stores it."""
    return datetime.fromtimestamp(int(now), UTC)
