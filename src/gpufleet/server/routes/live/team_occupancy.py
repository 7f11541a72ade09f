"""`/api/occupancy`: how many GPUs the workloads of each team held, and when.

The pods of a workload are added up: a part is a time in which it held the same number of GPUs. The numbers come
from the periods that hours are billed by.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.workloads.teams import team_of, user_of
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.periods import AllocationPeriod
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.live.occupancy import OccupancyParams, check_range
from gpufleet.server.routes.params import Team
from gpufleet.store.periods import PeriodStore

MAX_PERIODS = 20_000


class TeamOccupancyParams(OccupancyParams, kw_only=True):
    """A time range of at most 92 days, and the teams to show."""

    team: Team = ""
    workloads: Annotated[
        int, Meta(ge=1, le=200, description="Workloads of each team, the largest first.")
    ] = 8


class HeldPart(msgspec.Struct):
    """A time in which a workload held the same number of GPUs, in Unix seconds."""

    start: float
    end: Annotated[float, Meta(description="Unix seconds; 0 while it lasts.")]
    gpus: float


class OccupyingWorkload(msgspec.Struct, rename="camel"):
    """A workload, and when it held how many GPUs."""

    uid: str
    kind: str
    name: str
    namespace: str
    user: str
    gpu_hours: float
    """In the range."""
    parts: list[HeldPart]


class TeamOccupancy(msgspec.Struct, rename="camel"):
    """A team and its workloads."""

    team: str
    gpu_hours: float
    workloads: list[OccupyingWorkload]
    """Those with the most GPU hours, by start."""
    more: int
    """Workloads that are not listed."""


class FleetOccupancy(msgspec.Struct):
    """The teams, the one with the most GPU hours first."""

    teams: list[TeamOccupancy]
    truncated: bool
    """Whether there were more periods than could be read: those that ended first are missing."""


def team_occupancy_routes(clusters: Clusters, periods: PeriodStore[AllocationPeriod]) -> list[Route]:
    """Return the route of the occupancy by team."""

    @get("/api/occupancy", scope="filtered", example=_EXAMPLE)
    async def team_occupancy(query: TeamOccupancyParams, namespaces: Namespaces) -> FleetOccupancy:
        """How many GPUs the workloads of each team held in a time range, and when."""
        cluster = clusters.synced(query.cluster)
        check_range(query)
        try:
            found = await periods.latest(cluster.name, query.start, query.end, MAX_PERIODS + 1)
        except NotFound:  # nothing was accounted yet
            found = []
        shown = [
            period
            for period in found[:MAX_PERIODS]
            if is_visible(namespaces, period.namespace) and query.team in ("", team_of(period))
        ]
        # In a thread, because adding up many periods would delay other requests.
        teams = await asyncio.to_thread(_teams, shown, query)
        return FleetOccupancy(teams, len(found) > MAX_PERIODS)

    return [team_occupancy]


def _teams(periods: Iterable[AllocationPeriod], query: TeamOccupancyParams) -> list[TeamOccupancy]:
    teams: dict[str, dict[str, list[AllocationPeriod]]] = {}
    for period in periods:
        teams.setdefault(team_of(period), {}).setdefault(period.workload_uid, []).append(period)
    rows = [_team(name, list(workloads.values()), query) for name, workloads in teams.items()]
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.team))


def _team(
    name: str, workloads: Sequence[list[AllocationPeriod]], query: TeamOccupancyParams
) -> TeamOccupancy:
    rows = [_workload(periods, query) for periods in workloads]
    rows.sort(key=lambda row: (-row.gpu_hours, row.uid))
    listed = sorted(
        rows[: query.workloads], key=lambda row: (row.parts[0].start if row.parts else 0.0, row.uid)
    )
    hours = round(sum(row.gpu_hours for row in rows), 4)
    return TeamOccupancy(name, hours, listed, len(rows) - len(listed))


def _workload(periods: Sequence[AllocationPeriod], query: TeamOccupancyParams) -> OccupyingWorkload:
    last = max(periods, key=lambda period: period.start)
    parts = [
        part
        for part in held_parts(periods)
        if part.start < query.end and (not part.end or part.end > query.start)
    ]
    seconds = sum(
        max(0.0, min(part.end or query.end, query.end) - max(part.start, query.start)) * part.gpus
        for part in parts
    )
    return OccupyingWorkload(
        uid=last.workload_uid,
        kind=last.workload_kind,
        name=last.workload_name,
        namespace=last.namespace,
        user=user_of(last),
        gpu_hours=round(seconds / 3600, 4),
        parts=parts,
    )


def held_parts(periods: Sequence[AllocationPeriod]) -> list[HeldPart]:
    """Add up periods that overlap: return the times in which the number of held GPUs is the same."""
    forever = float("inf")
    changes: dict[float, float] = {}
    for period in periods:
        gpus = period.gpus * period.share
        changes[period.start] = changes.get(period.start, 0.0) + gpus
        end = period.end or forever
        changes[end] = changes.get(end, 0.0) - gpus
    parts, held, since = [], 0.0, 0.0
    for at in sorted(changes):
        if round(held, 6) > 0:
            parts.append(HeldPart(since, 0.0 if at == forever else at, round(held, 4)))
        held, since = held + changes[at], at
    return parts


_EXAMPLE = FleetOccupancy(
    [
        TeamOccupancy(
            "nlp",
            32.0,
            [
                OccupyingWorkload(
                    "1f0c", "Job", "llama", "research", "alice", 32.0, [HeldPart(1609459200.0, 0.0, 4)]
                )
            ],
            0,
        )
    ],
    False,
)
