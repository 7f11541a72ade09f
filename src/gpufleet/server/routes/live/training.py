"""`POST /api/workloads/{uid}/trainingPerformance` and `/reportToken`: receive training numbers.

The uid is that of the workload, of one of its pods, or `slurm:JOBID`, because a job knows no
other; the numbers are stored for the top-level owner. The answer means that the whole batch is
stored. Sending a batch again changes nothing. The points of a workload and of a caller are limited (`training.*`
settings), so that a job that reports in a loop fills neither the database nor the time of this server.
"""

import math
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from gpufleet.errors import InvalidRequest
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.lookup import workload_uid
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.reading import TrainingPoint
from gpufleet.runtime.settings import TrainingSettings
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.http.answers import Answer
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, post
from gpufleet.server.limits.rate_limit import RateLimit
from gpufleet.server.routes.params import ClusterParams
from gpufleet.store.training import TrainingStore
from gpufleet.training.metric_names import NAME_PATTERN

MAX_ROWS = 10_000
_DAY = 86_400.0


class ReportedRow(msgspec.Struct):
    """A number that a training job reports; the time is in Unix milliseconds."""

    metric: Annotated[str, Meta(pattern=NAME_PATTERN)]
    value: float
    timestamp: Annotated[int, Meta(ge=0, le=10**14)]
    rank: Annotated[int, Meta(ge=0, le=10**6)] | None = None


Rows = Annotated[list[ReportedRow], Meta(min_length=1, max_length=MAX_ROWS)]


class Stored(msgspec.Struct):
    """The workload that the numbers were stored for, and how many they are."""

    uid: str
    stored: int


class ReportToken(msgspec.Struct):
    """A token that may only report the training of one workload."""

    uid: str
    token: str


POINTS_PER_MINUTE = 120_000
"""Points of one workload per minute: 200 metrics ten times a second."""

CALLER_POINTS_PER_MINUTE = 600_000
"""Points of one caller (a pod, a token, or an address without a login) per minute: five such workloads."""


def training_routes(
    clusters: Clusters,
    training: TrainingStore,
    tokens: WorkloadTokens,
    limits: TrainingSettings = TrainingSettings(),  # noqa: B008  (frozen)
    clock: Callable[[], float] = time.time,
    *,
    points_per_minute: int = POINTS_PER_MINUTE,
    caller_points_per_minute: int = CALLER_POINTS_PER_MINUTE,
) -> list[Route]:
    """Return the routes that receive training numbers and issue tokens for them."""
    workloads = RateLimit(points_per_minute)
    callers = RateLimit(caller_points_per_minute)

    @post(
        "/api/workloads/{uid:str}/trainingPerformance",
        scope="filtered",
        example=Stored("abc123", 2),
        body_example=[ReportedRow("loss", 0.0125, 1609459200000, 0)],
    )
    async def report_training(
        uid: str, query: ClusterParams, body: Rows, context: RequestContext, namespaces: Namespaces
    ) -> Answer[Stored]:
        """Report a batch of training numbers of a workload; the same batch may be sent again.

        Takes the role operator, the workload's own token, or the service account token of its pod.
        """
        fleet = clusters.synced(query.cluster).fleet
        owner = workload_uid(fleet, uid)
        if not _is_own(fleet, context.caller, owner):
            workload_uid(fleet, uid, namespaces)  # NotFound outside the caller's namespaces
        _check_caller(fleet, context.caller, owner)
        for limit, key, of in (
            (workloads, owner, f"workload ({points_per_minute:,})"),
            (callers, _caller_key(context), f"caller ({caller_points_per_minute:,})"),
        ):
            if wait := limit.wait(key, len(body)):
                raise HTTPException(
                    429,
                    f"too many points per minute of one {of}; report less often, or from one rank only",
                    {"retry-after": str(math.ceil(wait))},
                )
        points = [_point(number, row, clock() + _DAY) for number, row in enumerate(body)]
        workloads.take(owner, len(points))
        callers.take(_caller_key(context), len(points))
        await training.append(fleet.cluster, owner, points, limits.max_points)
        return Answer(Stored(owner, len(points)))

    @post(
        "/api/workloads/{uid:str}/reportToken",
        scope="filtered",
        example=ReportToken("abc123", "gpw_YWJj.c2ln"),
    )
    async def report_token(uid: str, query: ClusterParams, namespaces: Namespaces) -> Answer[ReportToken]:
        """Issue the token with which a workload may report its training (role operator)."""
        owner = workload_uid(clusters.synced(query.cluster).fleet, uid, namespaces)
        return Answer(ReportToken(owner, tokens.issue(owner)), headers={"cache-control": "no-store"})

    return [report_training, report_token]


def _caller_key(context: RequestContext) -> str:
    """Return what identifies the caller: pods of one service account have the same name."""
    caller = context.caller
    return caller.pod_uid or caller.name if caller is not None else context.peer


def _check_caller(fleet: Fleet, caller: Caller | None, owner: str) -> None:
    """Raise 403 if a pod or a workload token reports for another workload."""
    if caller is None or caller.role == "operator" or _is_own(fleet, caller, owner):
        return
    raise HTTPException(403, f"{caller.name} may report the training of its own workload only")


def _is_own(fleet: Fleet, caller: Caller | None, owner: str) -> bool:
    """Return whether the caller is the workload `owner`, by its token or by that of its pod."""
    if caller is None:
        return False
    own_pod = caller.pod_uid != "" and fleet.ownership.root_of(caller.pod_uid) == owner
    return own_pod or caller.workload_uid == owner


def _point(number: int, row: ReportedRow, latest: float) -> TrainingPoint:
    if not math.isfinite(row.value):
        raise InvalidRequest(f"body[{number}].value: must be a finite number")
    if row.timestamp / 1000 > latest:
        raise InvalidRequest(f"body[{number}].timestamp: is in the future; it takes Unix milliseconds")
    return TrainingPoint(row.metric, row.value, row.timestamp / 1000, row.rank)
