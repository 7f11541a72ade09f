"""Convert job records of the controller and of the accounting database to one type, `SlurmJob`.

`gres_detail` has the GPUs of a running job on each node. Before and after, only totals are known, from the
first of these fields that is set: allocated, requested in total, per job, per node, per task, per socket.
"""

import msgspec

from gpufleet.model.workload import Status
from gpufleet.sources.slurm.gres import SHARD, count_in, indices_in, type_in
from gpufleet.sources.slurm.hostlist import expand, numbers
from gpufleet.sources.slurm.wire import AccountingRecord, JobRecord, field, number, text, words

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


class NodeAllocation(msgspec.Struct, frozen=True):
    """The GPUs of a job on one node."""

    node: str
    gpus: int
    """0 if it has shards."""
    indices: tuple[int, ...] = ()
    shards: int = 0
    """Shards of GPUs, of which each GPU of the node has a number."""


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with GPUs. Times are Unix seconds, 0 for not yet."""

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
    """In total; of one task for a pending array."""
    shards: int = 0
    """The same for shards; a job has either GPUs or shards."""
    type: str = ""
    """The type of GPU that it requests; empty for any."""
    allocations: tuple[NodeAllocation, ...] = ()
    array: int = 0
    """The id of its job array."""
    task: int | None = None
    waiting: str = ""
    """The pending tasks of an array, which have one record: `1-3%1`."""
    het: int = 0
    """The id of its heterogeneous job."""
    offset: int = 0
    submitted: float = 0.0
    started: float = 0.0
    expected_start: float = 0.0
    """When Slurm expects a pending job to start; 0 if it does not say."""
    ended: float = 0.0
    restarts: int = 0

    @property
    def status(self) -> Status:
        """The status in the terms of the API."""
        return status_of(self.state)

    @property
    def alias(self) -> str:
        """The id that exporters and prologs use."""
        return str(self.id)


def status_of(state: tuple[str, ...]) -> Status:
    """Return the status for the states of a Slurm job.

    A suspended, stopped or completing job still has its GPUs, so it counts as running. A job whose nodes
    are booting is pending.
    """
    states = set(state)
    if states & {"COMPLETING", "SIGNALING", "STAGE_OUT"}:
        return Status.RUNNING
    if states & _WAITING:
        return Status.PENDING
    if states & _FAILED:
        return Status.FAILED
    if states & _RUNNING:
        return Status.RUNNING
    return Status.COMPLETED if "COMPLETED" in states else Status.UNKNOWN


def job_from(record: JobRecord, known_gpus: int = 0) -> SlurmJob | None:
    """Convert a record; None for a job without GPUs or of another cluster in a federation.

    `known_gpus` is the number of GPUs in earlier records: a job that got a whole node without requesting
    GPUs no longer reports them once it has ended.
    """
    state = words(record.job_state)
    nodes = expand(text(record.nodes))
    allocations = _shares(record, nodes)
    gpus = sum(share.gpus for share in allocations) or _requested(record, len(nodes)) or known_gpus
    shards = 0 if gpus else sum(each.shards for each in allocations) or _requested(record, len(nodes), SHARD)
    if not (gpus or shards) or "REVOKED" in state:
        return None
    status = status_of(state)
    placed = bool(nodes) and (status is not Status.PENDING or "CONFIGURING" in state)
    return SlurmJob(
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
        shards=shards,
        type=_requested_type(record),
        allocations=(allocations or spread_evenly(gpus, nodes, shards)) if placed else (),
        array=number(record.array_job_id) or 0,
        task=number(record.array_task_id) if number(record.array_job_id) else None,
        waiting=text(record.array_task_string),
        het=number(record.het_job_id) or 0,
        offset=number(record.het_job_offset) or 0,
        submitted=float(number(record.submit_time) or 0),
        started=float(number(record.start_time) or 0) if placed else 0.0,
        expected_start=0.0 if placed else float(number(record.start_time) or 0),
        ended=float(number(record.end_time) or 0) if status.ended else 0.0,
        restarts=number(record.restart_cnt) or 0,
    )


def job_from_accounting(record: AccountingRecord) -> SlurmJob | None:
    """Convert a record of the accounting database; None for a job without GPUs."""
    nodes = expand(text(record.nodes)) if "assigned" not in text(record.nodes) else ()
    allocated, requested = field(record.tres, "allocated"), field(record.tres, "requested")
    gpus = _tres_gpus(allocated) or _tres_gpus(requested)
    shards = 0 if gpus else _tres_gpus(allocated, SHARD) or _tres_gpus(requested, SHARD)
    if not gpus and not shards:
        return None
    current = field(record.state, "current")
    state = words(current if current is not None else record.state)
    status = status_of(state)
    array = number(field(record.array, "job_id")) or 0
    return SlurmJob(
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
        shards=shards,
        allocations=spread_evenly(gpus, nodes, shards),
        array=array,
        task=number(field(record.array, "task_id")) if array else None,
        het=number(field(record.het, "job_id")) or 0,
        offset=number(field(record.het, "job_offset")) or 0,
        submitted=float(number(field(record.time, "submission")) or 0),
        started=float(number(field(record.time, "start")) or 0),
        ended=float(number(field(record.time, "end")) or 0) if status.ended else 0.0,
    )


def tasks_waiting(job: SlurmJob) -> int:
    """Return the number of array tasks behind one pending record."""
    return max(1, len(numbers(job.waiting.partition("%")[0]))) if job.task is None else 1


def spread_evenly(gpus: int, nodes: tuple[str, ...], shards: int = 0) -> tuple[NodeAllocation, ...]:
    """Distribute a total evenly over nodes, with the remainder on the first ones."""
    if not nodes:
        return ()
    each, rest = divmod(gpus or shards, len(nodes))
    amounts = ((node, each + (number < rest)) for number, node in enumerate(nodes))
    return tuple(
        NodeAllocation(node, amount) if gpus else NodeAllocation(node, 0, shards=amount)
        for node, amount in amounts
        if amount
    )


def _shares(record: JobRecord, nodes: tuple[str, ...]) -> tuple[NodeAllocation, ...]:
    details = record.gres_detail if isinstance(record.gres_detail, list | tuple) else ()
    if len(details) != len(nodes):
        return ()
    allocations = (_of_detail(node, text(detail)) for node, detail in zip(nodes, details, strict=True))
    return tuple(share for share in allocations if share.gpus or share.shards)


def _of_detail(node: str, detail: str) -> NodeAllocation:
    gpus = count_in(detail)
    if gpus:
        return NodeAllocation(node, gpus, indices_in(detail))
    return NodeAllocation(node, 0, indices_in(detail, SHARD), count_in(detail, SHARD))


def _requested(record: JobRecord, node_count: int, resource: str = "gpu") -> int:
    nodes = node_count or number(record.node_count) or 1
    return (
        count_in(text(record.tres_alloc_str), resource)
        or count_in(text(record.tres_req_str), resource)
        or count_in(text(record.tres_per_job), resource)
        or count_in(text(record.tres_per_node), resource) * nodes
        or count_in(text(record.tres_per_task), resource) * (number(record.tasks) or 1)
        or count_in(text(record.tres_per_socket), resource) * nodes
    )


def _requested_type(record: JobRecord) -> str:
    texts = (
        *(record.tres_req_str, record.tres_per_job, record.tres_per_node),
        *(record.tres_per_task, record.tres_per_socket),
    )
    return next((found for each in texts if (found := type_in(text(each)))), "")


def _tres_gpus(tres: object, resource: str = "gpu") -> int:
    """Count the GPUs (or shards) in a list of trackable resources."""
    rows = [row for row in tres if isinstance(row, dict)] if isinstance(tres, list | tuple) else []
    gpus = [row for row in rows if row.get("type") == "gres"]
    total = sum(number(row.get("count")) or 0 for row in gpus if row.get("name") == resource)
    return total or sum(
        number(row.get("count")) or 0 for row in gpus if str(row.get("name")).startswith(f"{resource}:")
    )


def _uid(user: int | None) -> str:
    return "" if user is None else str(user)
