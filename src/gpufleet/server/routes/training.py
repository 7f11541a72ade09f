"""Training numbers in: `POST /api/workloads/{uid}/trainingPerformance`, and the token for it.

The uid may be that of the workload, of one of its pods, or `slurm:JOBID`, since that is what a
job knows of itself; the numbers are kept for the top-level owner. A batch is stored, whole,
when it is answered; sent again, it changes nothing.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from gpufleet.errors import InvalidRequest
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.lookup import workload_uid
from gpufleet.fleet.state import Fleet
from gpufleet.model.reading import TrainingPoint
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.http.answers import Answer
from gpufleet.server.http.errors import Problem
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, post
from gpufleet.server.routes.params import InCluster
from gpufleet.training.metric_names import NAME_PATTERN

MOST_ROWS = 10_000
_DAY = 86_400.0


class TrainingRecorder(Protocol):
    """What keeps the numbers; the store's part `training` does."""

    async def append(self, cluster: str, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Store points; one that is sent again replaces itself."""


class ReportedRow(msgspec.Struct):
    """A number as a training job reports it; the time is in Unix milliseconds."""

    metric: Annotated[str, Meta(pattern=NAME_PATTERN)]
    value: float
    timestamp: Annotated[int, Meta(ge=0, le=10**14)]
    rank: Annotated[int, Meta(ge=0, le=10**6)] | None = None


Rows = Annotated[list[ReportedRow], Meta(min_length=1, max_length=MOST_ROWS)]


class Stored(msgspec.Struct):
    """The workload that the numbers were stored for, and how many."""

    uid: str
    stored: int


class ReportToken(msgspec.Struct):
    """A token that may report the training of one workload, and nothing else."""

    uid: str
    token: str


def training_routes(
    clusters: Clusters,
    book: TrainingRecorder,
    tokens: WorkloadTokens,
    clock: Callable[[], float] = time.time,
) -> list[Route]:
    """The way in for training numbers."""

    @post(
        "/api/workloads/{uid:str}/trainingPerformance",
        example=Stored("abc123", 2),
        body_example=[ReportedRow("loss", 0.0125, 1609459200000, 0)],
    )
    async def report_training(
        uid: str, query: InCluster, body: Rows, context: RequestContext
    ) -> Answer[Stored]:
        """Report training numbers of a workload, in batches; the same batch may be sent again.

        Takes the role operator, the workload's own token, or the service account token of its pod.
        """
        fleet = clusters.synced(query.cluster).fleet
        owner = workload_uid(fleet, uid)
        _refuse_strangers(fleet, context.caller, owner)
        points = [_point(number, row, clock() + _DAY) for number, row in enumerate(body)]
        await book.append(fleet.cluster, owner, points)
        return Answer(Stored(owner, len(points)))

    @post("/api/workloads/{uid:str}/reportToken", example=ReportToken("abc123", "gpw_YWJj.c2ln"))
    async def report_token(uid: str, query: InCluster) -> Answer[ReportToken]:
        """Make the token with which a workload may report its training (role operator)."""
        owner = workload_uid(clusters.synced(query.cluster).fleet, uid)
        return Answer(ReportToken(owner, tokens.issue(owner)), headers=((b"cache-control", b"no-store"),))

    return [report_training, report_token]


def _refuse_strangers(fleet: Fleet, caller: Caller | None, owner: str) -> None:
    """A pod or a workload's token may report for its own workload only."""
    if caller is None or caller.role == "operator" or caller.workload_uid == owner:
        return
    if caller.pod_uid and fleet.ownership.root_of(caller.pod_uid) == owner:
        return
    raise Problem(403, f"{caller.name} may report the training of its own workload only")


def _point(number: int, row: ReportedRow, latest: float) -> TrainingPoint:
    if not math.isfinite(row.value):
        raise InvalidRequest(f"body[{number}].value: must be a finite number")
    if row.timestamp / 1000 > latest:
        raise InvalidRequest(f"body[{number}].timestamp: lies in the future; it takes Unix milliseconds")
    return TrainingPoint(row.metric, row.value, row.timestamp / 1000, row.rank)
