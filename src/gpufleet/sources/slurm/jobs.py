"""One job of Slurm, whatever told of it: the controller or the accounting database.

`Job` has what gpufleet needs in one form. How many GPUs a job has on each node is in
`gres_detail` while it runs; before and after, only totals are known, in the first of these that
says: what was allocated, what was asked for in all, for the job, each node, task or socket.
"""

import msgspec

from gpufleet.model.workload import Status
from gpufleet.sources.slurm.gres import count_in, indices_in
from gpufleet.sources.slurm.hostlist import expand, numbers
from gpufleet.sources.slurm.wire import JobRecord, PastRecord, field, number, text, words

_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
    "POWER_UP_NODE",
    "EXPEDITING",
}
_FAILED = {
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "LAUNCH_FAILED",
    "RECONFIG_FAIL",
}


class Share(msgspec.Struct, frozen=True):
    """What a job has on one node."""

    node: str
    gpus: int
    indices: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job that asks for GPUs. Times are Unix seconds, 0 for not yet."""

    id: int
    name: str
    state: tuple[str, ...]
    reason: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    wckey: str = ""
    comment: str = ""
    gpus: int = 0
    """In all, on whatever nodes; of one task while an array waits."""
    shares: tuple[Share, ...] = ()
    array: int = 0
    """The id of the job array that it belongs to."""
    task: int | None = None
    waiting: str = ""
    """The tasks of an array that wait and are told of as one: `1-3%1`."""
    het: int = 0
    """The id of the heterogeneous job that it is a component of."""
    offset: int = 0
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    restarts: int = 0

    @property
    def status(self) -> Status:
        """How it is doing, in the words of the contract."""
        return status_of(self.state)

    @property
    def alias(self) -> str:
        """The id by which exporters and prologs know it."""
        return str(self.id)


def status_of(state: tuple[str, ...]) -> Status:
    """The status that Slurm's words for a job stand for.

    A job that is suspended, stopped or completing still has its GPUs, so it counts as running;
    one whose nodes are being booted for it waits.
    """
    said = set(state)
    if said & {"COMPLETING", "SIGNALING", "STAGE_OUT"}:
        return Status.RUNNING
    if said & _WAITING:
        return Status.PENDING
    if said & _FAILED:
        return Status.FAILED
    if said & _RUNNING:
        return Status.RUNNING
    return Status.COMPLETED if "COMPLETED" in said else Status.UNKNOWN


def job_from(record: JobRecord, had: int = 0) -> Job | None:
    """The job, or None if it has nothing to do with GPUs (or belongs to another cluster of a federation).

    `had` are the GPUs that it was seen with: one that got a whole node without asking for GPUs
    says nothing of them any more once it has ended.
    """
    state = words(record.job_state)
    nodes = expand(text(record.nodes))
    shares = _shares(record, nodes)
    gpus = sum(share.gpus for share in shares) or _asked(record, len(nodes)) or had
    if not gpus or "REVOKED" in state:
        return None
    status = status_of(state)
    placed = bool(nodes) and (status is not Status.PENDING or "CONFIGURING" in state)
    return Job(
        id=number(record.job_id) or 0,
        name=text(record.name),
        state=state,
        reason=text(record.state_reason),
        user=text(record.user_name) or _uid(number(record.user_id)),
        account=text(record.account),
        partition=text(record.partition),
        qos=text(record.qos),
        wckey=text(record.wckey),
        comment=text(record.comment),
        gpus=gpus,
        shares=(shares or spread(gpus, nodes)) if placed else (),
        array=number(record.array_job_id) or 0,
        task=number(record.array_task_id) if number(record.array_job_id) else None,
        waiting=text(record.array_task_string),
        het=number(record.het_job_id) or 0,
        offset=number(record.het_job_offset) or 0,
        submitted=float(number(record.submit_time) or 0),
        started=float(number(record.start_time) or 0) if placed else 0.0,
        ended=float(number(record.end_time) or 0) if status.ended else 0.0,
        restarts=number(record.restart_cnt) or 0,
    )


def past_job_from(record: PastRecord) -> Job | None:
    """A job of the accounting database, or None if it had no GPUs."""
    nodes = expand(text(record.nodes)) if "assigned" not in text(record.nodes) else ()
    gpus = _counted(field(record.tres, "allocated")) or _counted(field(record.tres, "requested"))
    if not gpus:
        return None
    current = field(record.state, "current")
    state = words(current if current is not None else record.state)
    status = status_of(state)
    array = number(field(record.array, "job_id")) or 0
    return Job(
        id=number(record.job_id) or 0,
        name=text(record.name),
        state=state,
        reason=text(field(record.state, "reason")),
        user=text(record.user) or text(field(record.association, "user")),
        account=text(record.account) or text(field(record.association, "account")),
        partition=text(record.partition),
        qos=text(record.qos),
        wckey=text(field(record.wckey, "wckey")),
        comment=text(field(record.comment, "job")),
        gpus=gpus,
        shares=spread(gpus, nodes),
        array=array,
        task=number(field(record.array, "task_id")) if array else None,
        het=number(field(record.het, "job_id")) or 0,
        offset=number(field(record.het, "job_offset")) or 0,
        submitted=float(number(field(record.time, "submission")) or 0),
        started=float(number(field(record.time, "start")) or 0),
        ended=float(number(field(record.time, "end")) or 0) if status.ended else 0.0,
    )


def tasks_waiting(job: Job) -> int:
    """How many tasks of an array one waiting record stands for."""
    return max(1, len(numbers(job.waiting.partition("%")[0]))) if job.task is None else 1


def spread(gpus: int, nodes: tuple[str, ...]) -> tuple[Share, ...]:
    """A total over nodes as evenly as it goes, the first ones having more: all that can be said of it."""
    if not nodes:
        return ()
    each, rest = divmod(gpus, len(nodes))
    shares = (Share(node, each + (number < rest)) for number, node in enumerate(nodes))
    return tuple(share for share in shares if share.gpus)


def _shares(record: JobRecord, nodes: tuple[str, ...]) -> tuple[Share, ...]:
    details = record.gres_detail if isinstance(record.gres_detail, list | tuple) else ()
    if len(details) != len(nodes):
        return ()
    shares = (
        Share(node, count_in(text(detail)), indices_in(text(detail)))
        for node, detail in zip(nodes, details, strict=True)
    )
    return tuple(share for share in shares if share.gpus)


def _asked(record: JobRecord, placed: int) -> int:
    nodes = placed or number(record.node_count) or 1
    return (
        count_in(text(record.tres_alloc_str))
        or count_in(text(record.tres_req_str))
        or count_in(text(record.tres_per_job))
        or count_in(text(record.tres_per_node)) * nodes
        or count_in(text(record.tres_per_task)) * (number(record.tasks) or 1)
        or count_in(text(record.tres_per_socket)) * nodes
    )


def _counted(tres: object) -> int:
    """GPUs in the list of resources that the accounting database gives."""
    rows = [row for row in tres if isinstance(row, dict)] if isinstance(tres, list | tuple) else []
    gpus = [row for row in rows if row.get("type") == "gres"]
    whole = sum(number(row.get("count")) or 0 for row in gpus if row.get("name") == "gpu")
    return whole or sum(
        number(row.get("count")) or 0 for row in gpus if str(row.get("name")).startswith("gpu:")
    )


def _uid(user: int | None) -> str:
    return "" if user is None else str(user)
