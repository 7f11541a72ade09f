"""What Slurm answers in JSON, with only the fields that are needed.

The same field is an integer in 22.05, and from 23.02 on more and more of them are
`{"set": …, "infinite": …, "number": …}`; a state is a word, a word with flags beside it, or a
list. So fields are taken as they come, and `number` and `words` make one thing of all.
"""

from typing import Any, TypeVar

import msgspec

from gpufleet.errors import SlurmUnavailable

T = TypeVar("T")


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A job as `squeue --json` and slurmrestd tell it."""

    job_id: Any = 0
    name: Any = ""
    job_state: Any = ""
    state_reason: Any = ""
    user_name: Any = ""
    user_id: Any = None
    account: Any = ""
    partition: Any = ""
    qos: Any = ""
    wckey: Any = ""
    comment: Any = ""
    nodes: Any = ""
    node_count: Any = None
    tasks: Any = None
    array_job_id: Any = None
    array_task_id: Any = None
    array_task_string: Any = ""
    het_job_id: Any = None
    het_job_offset: Any = None
    gres_detail: Any = ()
    tres_alloc_str: Any = ""
    tres_req_str: Any = ""
    tres_per_job: Any = ""
    tres_per_node: Any = ""
    tres_per_task: Any = ""
    tres_per_socket: Any = ""
    submit_time: Any = None
    start_time: Any = None
    end_time: Any = None
    restart_cnt: Any = 0


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
    """A node as `scontrol show nodes --json` and slurmrestd tell it."""

    name: Any = ""
    hostname: Any = ""
    address: Any = ""
    gres: Any = ""
    state: Any = ""
    state_flags: Any = ()
    reason: Any = ""
    reason_set_by_user: Any = ""
    active_features: Any = ()
    partitions: Any = ()
    boot_time: Any = None


class PastRecord(msgspec.Struct, frozen=True, gc=False):
    """A job as the accounting database tells it, through `sacct --json` or slurmrestd."""

    job_id: Any = 0
    name: Any = ""
    state: Any = None
    user: Any = ""
    account: Any = ""
    association: Any = None
    partition: Any = ""
    qos: Any = ""
    wckey: Any = None
    comment: Any = None
    nodes: Any = ""
    array: Any = None
    het: Any = None
    tres: Any = None
    time: Any = None


class _Answer(msgspec.Struct, frozen=True):
    errors: Any = ()


class _Jobs(_Answer, frozen=True):
    jobs: tuple[JobRecord, ...] | None = None


class _Nodes(_Answer, frozen=True):
    nodes: tuple[NodeRecord, ...] | None = None


class _Past(_Answer, frozen=True):
    jobs: tuple[PastRecord, ...] | None = None


def read_jobs(raw: bytes) -> tuple[JobRecord, ...]:
    """The jobs of an answer; SlurmUnavailable if it is an error or no answer at all."""
    answer = _decoded(raw, _Jobs)
    return _there(answer.errors, answer.jobs, "jobs")


def read_nodes(raw: bytes) -> tuple[NodeRecord, ...]:
    """The nodes of an answer; SlurmUnavailable if it is an error or no answer at all."""
    answer = _decoded(raw, _Nodes)
    return _there(answer.errors, answer.nodes, "nodes")


def read_past(raw: bytes) -> tuple[PastRecord, ...]:
    """The jobs of an answer of the accounting database; SlurmUnavailable as above."""
    answer = _decoded(raw, _Past)
    return _there(answer.errors, answer.jobs, "jobs")


def number(value: Any) -> int | None:
    """The number that a field stands for; None for unset and infinite."""
    if isinstance(value, dict):
        return number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any) -> str:
    """The words of a field; empty for what Slurm writes for nothing."""
    found = (
        ",".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
    )
    return "" if found in ("(null)", "N/A", "None") else found.replace("\x00", "")


def words(*values: Any) -> tuple[str, ...]:
    """Every word of some states, in capitals: `mixed`, `MIXED+DRAIN` or a list of them."""
    found: list[str] = []
    for value in values:
        parts = value if isinstance(value, list | tuple) else str(value or "").split("+")
        found.extend(str(part).strip().rstrip("*~#!%$@^-").upper() for part in parts)
    return tuple(filter(None, found))


def field(value: Any, *names: str) -> Any:
    """A field of a field; None where any of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _decoded(raw: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SlurmUnavailable(f"Slurm's answer is not the JSON that was expected: {error}") from None


def _there(errors: Any, found: T | None, what: str) -> T:
    if errors:
        first = errors[0] if isinstance(errors, list | tuple) else errors
        said = text(field(first, "description")) or text(field(first, "error")) or str(first)
        raise SlurmUnavailable(f"Slurm answers with an error: {said[:300]}")
    if found is None:
        raise SlurmUnavailable(f"Slurm's answer has no {what}")
    return found
