"""What accounting needs from the fleet and the store, as small Protocols; the command line wires them in."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from gpufleet.model.hours import Hour, WorkloadHour
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod

Period = TypeVar("Period", AllocationPeriod, CapacityPeriod)


class Ledger(Protocol[Period]):
    """Writes periods down as they begin and end."""

    def drain(self) -> list[Period]:
        """Every period that began, ended or was corrected since the last call."""
        ...

    def open(self) -> list[Period]:
        """The periods that last."""
        ...

    def adopt(self, periods: Iterable[Period]) -> None:
        """Go on with periods of an earlier life."""


class Known(Protocol):
    """From when until when the holders of a cluster are known, in Unix seconds."""

    @property
    def since(self) -> float:
        """The beginning."""
        ...

    @property
    def until(self) -> float:
        """When that was last stored."""
        ...


class ClusterStore(Protocol):
    """Clusters that are accounted for."""

    async def open(self, name: str, since: float) -> Known:
        """Account for a cluster, if not done before, from `since` on."""
        ...

    async def span(self, name: str) -> Known | None:
        """From when until when everything of the cluster is stored; None if it is not accounted for."""
        ...

    async def set_stored_until(self, name: str, until: float) -> None:
        """Everything of the cluster up to `until` is stored."""


class PeriodStore(Protocol[Period]):
    """Periods of one kind."""

    async def newest(self, cluster: str, holders: Collection[str]) -> dict[str, Period]:
        """The last period of each holder that is named or has an open one."""
        ...

    async def overlapping(self, cluster: str, start: float, end: float) -> list[Period]:
        """Every period that overlaps with a span."""
        ...

    async def save(self, cluster: str, periods: Sequence[Period]) -> None:
        """Store periods."""


class SnapshotStore(Protocol):
    """Snapshots."""

    async def save(
        self,
        cluster: str,
        taken_at: int,
        capacity: int,
        allocated: float,
        utilization: float | None,
        details: bytes,
        readings: bytes,
    ) -> None:
        """Keep a snapshot."""

    async def readings(self, cluster: str, hour: int) -> list[tuple[int, bytes]]:
        """The readings of each snapshot of an hour, with its time."""
        ...

    async def newest(self, cluster: str, now: float) -> int | None:
        """When the newest was taken; None if there is none but in the future."""
        ...


class Done(Protocol):
    """How an hour was rolled up."""

    @property
    def measured(self) -> bool:
        """Whether the metric source answered."""
        ...

    @property
    def stale(self) -> bool:
        """Whether something was learned of it since."""
        ...


class HourStore(Protocol):
    """Hours that were rolled up, by number."""

    async def states(self, cluster: str, since: int) -> Mapping[int, Done]:
        """The hours that were rolled up."""
        ...

    async def has_samples(self, cluster: str, hour: int) -> bool:
        """Whether the stored hour was measured at all."""
        ...

    async def statuses(self, cluster: str, hour: int) -> dict[str, str]:
        """What the stored hour says of its workloads."""
        ...

    async def clear_stale(self, cluster: str, hour: int) -> None:
        """The stored hour stays as it is."""

    async def mark_stale(self, cluster: str, since: int) -> None:
        """Whatever is stored from hour number `since` on is not all that there will be."""

    async def save(
        self,
        cluster: str,
        hour: int,
        rolled: Hour | None,
        *,
        measured: bool,
        status: Callable[[WorkloadHour], str],
    ) -> bool:
        """Replace an hour. False if what is stored must stay, because the day's hours are forgotten by now."""
        ...


class EndedStore(Protocol):
    """Workloads that are over."""

    async def statuses(self, cluster: str, uids: Sequence[str]) -> dict[str, str]:
        """How each of these ended, where that is known."""
        ...


class Shelf(NamedTuple):
    """Where everything is kept."""

    clusters: ClusterStore
    holdings: PeriodStore[AllocationPeriod]
    capacities: PeriodStore[CapacityPeriod]
    snapshots: SnapshotStore
    hours: HourStore
    ended: EndedStore
