"""What changed lately, for people who watch: kept for a while and told to whoever listens."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from gpufleet.fleet.node_view import NodeState, NodeView
from gpufleet.fleet.workload_summary import Workload

KEPT = 500


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that became different."""

    at: float
    subject: str
    """workload, node, gpu or claim."""
    name: str
    """The uid of a workload, the name of a node, node/index of a GPU, namespace/name of a claim."""
    title: str
    was: str
    now: str
    reason: str = ""


class Changes:
    """The newest changes, and the listeners that hear of each."""

    def __init__(self) -> None:
        self.recent: deque[Change] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` with every change from now on; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, changes: Iterable[Change]) -> None:
        """Write changes down and pass them on."""
        for change in changes:
            self.recent.append(change)
            for listener in list(self._listeners):
                listener(change)


def node_changes(name: str, before: NodeView | None, after: NodeView | None, at: float) -> Iterator[Change]:
    """What a second look at a node found to be different, for the node and its GPUs."""
    was, now = _condition(before), _condition(after)
    if was != now:
        reason = after.fault if after else ""
        yield Change(at=at, subject="node", name=name, title=name, was=was, now=now, reason=reason)
    old = {gpu.index: gpu.health for gpu in before.gpus} if before else {}
    for gpu in after.gpus if after else ():
        health = old.get(gpu.index)
        if health is not None and health is not gpu.health:
            yield Change(
                at=gpu.health_since or at,
                subject="gpu",
                name=f"{name}/{gpu.index}",
                title=f"GPU {gpu.index} of {name}",
                was=health,
                now=gpu.health,
                reason=gpu.health_reason,
            )


def workload_changes(before: Workload | None, after: Workload, at: float) -> Iterator[Change]:
    """Whether a workload came, went or took another status."""
    was = before.status.value if before else ""
    now = "Deleted" if after.gone and not after.status.ended else after.status.value
    if was != now:
        title = f"{after.kind} {after.namespace}/{after.name}"
        yield Change(at=at, subject="workload", name=after.uid, title=title, was=was, now=now)


def _condition(view: NodeView | None) -> str:
    if view is None:
        return "gone"
    if view.state is NodeState.FAULTY:
        return "faulty"
    return "cordoned" if view.node.cordoned else "healthy"
