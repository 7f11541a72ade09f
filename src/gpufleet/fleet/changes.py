"""Recent changes of nodes, GPUs and workloads, kept for a while and published to listeners."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from gpufleet.fleet.node_view import NodeState, NodeView
from gpufleet.fleet.workloads.summary import Workload

MAX_RECENT = 500


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state."""

    at: float
    subject: str
    """workload, node, gpu or claim."""
    name: str
    """The uid of a workload, the name of a node, node/index of a GPU, namespace/name of a claim."""
    title: str
    was: str
    now: str
    reason: str = ""
    namespace: str | None = None
    """The namespace that it happened in; None for nodes and GPUs, which have none."""


class Changes:
    """The newest changes, and the listeners that receive each of them."""

    def __init__(self) -> None:
        self.recent: deque[Change] = deque(maxlen=MAX_RECENT)
        self._listeners: list[Callable[[Change], None]] = []

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` with every change from now on. Return a function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, changes: Iterable[Change]) -> None:
        """Keep the changes and pass them to the listeners."""
        for change in changes:
            self.recent.append(change)
            for listener in list(self._listeners):
                listener(change)


def node_changes(name: str, before: NodeView | None, after: NodeView | None, at: float) -> Iterator[Change]:
    """Yield what differs between two views of a node, for the node and its GPUs."""
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
    """Yield a change if a workload appeared, was deleted or changed its status."""
    was = before.status.value if before else ""
    now = "Deleted" if after.gone and not after.status.ended else after.status.value
    if was != now:
        title = f"{after.kind} {after.namespace}/{after.name}"
        yield Change(
            at=at,
            subject="workload",
            name=after.uid,
            title=title,
            was=was,
            now=now,
            namespace=after.namespace,
        )


def _condition(view: NodeView | None) -> str:
    if view is None:
        return "gone"
    if view.state is NodeState.FAULTY:
        return "faulty"
    return "cordoned" if view.node.cordoned else "healthy"
