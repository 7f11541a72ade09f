"""Slurm's JSON responses, with only the fields that are needed.

The same field is an integer in 22.05 and, in more and more cases from 23.02 on,
`{"set": …, "infinite": …, "number": …}`. A state is a word, a word with separate flags, or a list. So fields
are decoded as they are, and `number`, `text` and `words` normalise them.
"""

from typing import Any, TypeVar

import msgspec

from gpufleet.errors import SlurmUnavailable

MAX_ANSWER_BYTES = 192 << 20
"""Bytes of one answer of Slurm: jobs of a large site have about 1 KiB each."""
MAX_RECORDS = 500_000
"""Jobs or nodes in one response. Each needs much more memory than its shortest JSON."""

T = TypeVar("T")


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A job of `squeue --json` or slurmrestd."""

    job_id: Any
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
    """A node of `scontrol show nodes --json` or slurmrestd."""

    name: Any
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


class AccountingRecord(msgspec.Struct, frozen=True, gc=False):
    """A job of the accounting database, through `sacct --json` or slurmrestd."""

    job_id: Any
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


class _Response(msgspec.Struct, frozen=True):
    errors: Any = ()


class _Jobs(_Response, frozen=True):
    jobs: tuple[JobRecord, ...] | None = None


class _Nodes(_Response, frozen=True):
    nodes: tuple[NodeRecord, ...] | None = None


class _AccountingJobs(_Response, frozen=True):
    jobs: tuple[AccountingRecord, ...] | None = None


def read_jobs(raw: bytes | bytearray) -> tuple[JobRecord, ...]:
    """Decode jobs; raise SlurmUnavailable for an error or an invalid response."""
    response = _decode(raw, _Jobs)
    return _checked(response.errors, response.jobs, "jobs")


def read_nodes(raw: bytes | bytearray) -> tuple[NodeRecord, ...]:
    """Decode nodes; raise SlurmUnavailable for an error or an invalid response."""
    response = _decode(raw, _Nodes)
    return _checked(response.errors, response.nodes, "nodes")


def read_accounting(raw: bytes | bytearray) -> tuple[AccountingRecord, ...]:
    """Decode jobs of the accounting database; raise SlurmUnavailable for an error or an invalid response."""
    response = _decode(raw, _AccountingJobs)
    return _checked(response.errors, response.jobs, "jobs")


def number(value: Any) -> int | None:
    """Return a field as a number; None for unset and infinite."""
    if isinstance(value, dict):
        return number(value.get("number")) if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any) -> str:
    """Return a field as text; empty for Slurm's notations of nothing."""
    found = (
        ",".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
    )
    return "" if found in ("(null)", "N/A", "None") else found.replace("\x00", "")


def words(*values: Any) -> tuple[str, ...]:
    """Return the upper-case words of states such as `mixed`, `MIXED+DRAIN` or a list."""
    found: list[str] = []
    for value in values:
        parts = value if isinstance(value, list | tuple) else str(value or "").split("+")
        found.extend(str(part).strip().rstrip("*~#!%$@^-").upper() for part in parts)
    return tuple(filter(None, found))


def field(value: Any, *names: str) -> Any:
    """Return a nested field; None if any level is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _decode(raw: bytes | bytearray, type_: type[T]) -> T:
    key = b'"name"' if type_ is _Nodes else b'"job_id"'
    if raw.count(key) > MAX_RECORDS:
        raise SlurmUnavailable(f"Slurm responds with more than {MAX_RECORDS} records")
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SlurmUnavailable(f"Slurm's response is not the expected JSON: {error}") from None


def _checked(errors: Any, found: T | None, field_name: str) -> T:
    if errors:
        first = errors[0] if isinstance(errors, list | tuple) else errors
        message = text(field(first, "description")) or text(field(first, "error")) or str(first)
        raise SlurmUnavailable(f"Slurm responds with an error: {message[:300]}")
    if found is None:
        raise SlurmUnavailable(f"Slurm's response has no {field_name}")
    return found
