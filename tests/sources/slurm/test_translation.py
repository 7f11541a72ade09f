"""Conversion of Slurm's responses of several releases. The records follow the documented formats."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.errors import SlurmUnavailable
from gpufleet.model.workload import Status
from gpufleet.sources.slurm.gres import SHARD, count_in, indices_in, shards_per_gpu, type_in
from gpufleet.sources.slurm.hostlist import expand, numbers
from gpufleet.sources.slurm.jobs import (
    NodeAllocation,
    SlurmJob,
    job_from,
    job_from_accounting,
    spread_evenly,
    status_of,
    tasks_waiting,
)
from gpufleet.sources.slurm.nodes import node_from, nodes_in_text
from gpufleet.sources.slurm.objects import objects_of
from gpufleet.sources.slurm.reasons import waiting_reason
from gpufleet.sources.slurm.wire import read_accounting, read_jobs, read_nodes


def some(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


NONE = {"set": False, "infinite": False, "number": 0}
JOB = {"job_id": 71, "name": "llm", "user_name": "ann", "account": "nlp", "partition": "gpu", "qos": "high"}
OF_22_05 = JOB | {
    "job_state": "RUNNING", "nodes": "gpu[01-02]", "array_job_id": 0, "array_task_id": None, "het_job_id": 0,
    "gres_detail": ["gpu:a100:3(IDX:2-4)", "gpu:a100:1(IDX:7)"], "tres_per_node": "gres:gpu:2",
    "submit_time": 100, "start_time": 200, "end_time": 9200, "restart_cnt": 0, "state_reason": "None",
}  # fmt: skip
OF_23_02 = OF_22_05 | {"array_job_id": some(0), "array_task_id": NONE, "het_job_id": some(0)}
OF_23_11 = OF_23_02 | {
    "job_state": ["RUNNING"], "submit_time": some(100), "start_time": some(200), "end_time": some(9200),
    "node_count": some(2), "tres_per_node": "gres/gpu:2",
    "job_resources": {"nodes": "gpu[01-02]", "allocated_nodes": []},
}  # fmt: skip
OF_25_05 = OF_23_11 | {
    "tres_alloc_str": "cpu=64,mem=512G,node=2,billing=64,gres/gpu=4,gres/gpu:a100=4",
    "job_resources": {"select_type": ["CORE"], "nodes": {"count": 2, "list": "gpu[01-02]"}},
    "licenses_allocated": "", "priority_by_partition": [], "segment_size": 0,
}  # fmt: skip


def response(**fields: object) -> bytes:
    return msgspec.json.encode({"meta": {}, "errors": [], "warnings": [], **fields})


def only_job(record: dict[str, Any]) -> SlurmJob:
    (found,) = read_jobs(response(jobs=[record]))
    job = job_from(found)
    assert job is not None
    return job


@pytest.mark.parametrize("record", [OF_22_05, OF_23_02, OF_23_11, OF_25_05])
def test_every_format_yields_the_same_job(record: dict[str, Any]) -> None:
    assert only_job(record) == SlurmJob(
        id=71, name="llm", state=("RUNNING",), user="ann", account="nlp", partition="gpu", qos="high", gpus=4,
        allocations=(NodeAllocation("gpu01", 3, (2, 3, 4)), NodeAllocation("gpu02", 1, (7,))), submitted=100, started=200,
    )  # fmt: skip
    objects = objects_of(only_job(record), "u", "")
    assert (objects.owner.namespace, objects.owner.status) == ("nlp", Status.RUNNING)
    assert [(p.node, p.gpus, p.held, p.alias) for p in objects.pods] == [
        ("gpu01", 3, (2, 3, 4), "71"),
        ("gpu02", 1, (7,), "71"),
    ]


def test_a_pending_array_of_24_11_requests_the_gpus_of_all_its_tasks() -> None:
    waits = OF_23_11 | {
        "job_state": ["PENDING"], "nodes": "", "gres_detail": [], "start_time": some(99999), "end_time": NONE,
        "array_job_id": some(71), "array_task_string": "3-6,9%2", "state_reason": "Priority",
    }  # fmt: skip
    job = only_job(waits)
    assert (job.gpus, job.allocations, job.started, job.array) == (4, (), 0.0, 71)
    (pod,) = objects_of(job, "u", "g").pods
    assert (pod.gpus, pod.node, pod.holds) == (20, "", False)
    assert pod.model_requested == ""
    assert pod.waiting_reason == (
        "jobs of higher priority are ahead of it in partition gpu (Slurm: Priority); "
        "Slurm expects it to start by 1970-01-02 03:50 UTC"
    )
    assert pod.expected_start == 100_200.0, "the same time as in the sentence"
    typed = objects_of(only_job(waits | {"tres_per_node": "gres:gpu:a100_80gb:2"}), "u", "g").pods[0]
    assert typed.model_requested == "NVIDIA_A100_SXM4_80GB"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Resources", "waits for free resources in partition gpu (Slurm: Resources)"),
        ("JobHeldUser", "its owner holds it: scontrol release 71 (Slurm: JobHeldUser)"),
        ("QOSMaxGRESPerUser", "a limit of its QOS is reached (Slurm: QOSMaxGRESPerUser)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:gpu01",
            "a node that it requires is down, drained or reserved (Slurm: ReqNodeNotAvail, UnavailableNodes:gpu01)",
        ),
        ("FedJobLock", "Slurm's reason is FedJobLock"),
        ("None", ""),
    ],
)
def test_a_pending_job_says_why_it_waits(reason: str, sentence: str) -> None:
    job = only_job(OF_23_11 | {"job_state": ["PENDING"], "nodes": "", "gres_detail": [], "start_time": NONE})
    assert waiting_reason(msgspec.structs.replace(job, reason=reason)) == sentence


def test_jobs_without_gpus_and_siblings_of_a_federation_are_ignored() -> None:
    plain = OF_23_11 | {"gres_detail": [], "tres_per_node": ""}
    revoked = OF_23_11 | {"job_state": ["REVOKED"]}
    assert [job_from(record) for record in read_jobs(response(jobs=[plain, revoked]))] == [None, None]


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (("PENDING",), Status.PENDING),
        (("RUNNING", "CONFIGURING"), Status.PENDING),
        (("COMPLETED", "COMPLETING"), Status.RUNNING),
        (("SUSPENDED",), Status.RUNNING),
        (("COMPLETED",), Status.COMPLETED),
        (("CANCELLED",), Status.FAILED),
        (("OUT_OF_MEMORY",), Status.FAILED),
        (("PENDING", "REQUEUED"), Status.PENDING),
        (("NEW_IN_27",), Status.UNKNOWN),
        ((), Status.UNKNOWN),
    ],
)
def test_states_are_converted_to_statuses_of_the_api(state: tuple[str, ...], status: Status) -> None:
    assert status_of(state) is status


def test_ended_jobs_of_the_accounting_database_are_read_in_both_formats() -> None:
    old = {
        "job_id": 71, "name": "llm", "user": "ann", "account": "nlp", "partition": "gpu", "qos": "high",
        "nodes": "gpu[01-02]", "array": {"job_id": 0, "task_id": None}, "het": {"job_id": 0},
        "state": {"current": "TIMEOUT", "reason": "None"},
        "time": {"submission": 100, "start": 200, "end": 300, "elapsed": 100},
        "tres": {"allocated": [
            {"type": "cpu", "name": "", "id": 1, "count": 64},
            {"type": "gres", "name": "gpu", "id": 1001, "count": 4},
            {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 4},
        ]},
    }  # fmt: skip
    new = old | {
        "state": {"current": ["TIMEOUT"], "reason": "None"},
        "array": {"job_id": 0, "task_id": NONE, "task": ""},
        "het": {"job_id": 0, "job_offset": NONE},
    }
    first, second = (job_from_accounting(record) for record in read_accounting(response(jobs=[old, new])))
    assert first == second
    assert first is not None
    assert (first.status, first.started, first.ended) == (Status.FAILED, 200, 300)
    assert first.allocations == (NodeAllocation("gpu01", 2), NodeAllocation("gpu02", 2))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not the expected JSON"),
        (b"<html>", "not the expected JSON"),
        (b'{"jobs": 7}', "not the expected JSON"),
        (b'{"meta": {}}', "no jobs"),
        (b'{"jobs": [], "errors": [{"error": "Unable to contact slurm controller"}]}', "Unable to contact"),
        (
            b'{"jobs": [], "errors": [{"description": "Authentication failure", "error_number": 5}]}',
            "Authentic",
        ),
    ],
)
def test_an_invalid_response_is_an_error_and_not_an_empty_cluster(raw: bytes, words: str) -> None:
    with pytest.raises(SlurmUnavailable, match=words):
        read_jobs(raw)


def test_nodes_of_25_05_have_their_gpus_and_problems() -> None:
    record = {
        "hostname": "gpu01",
        "address": "10.0.0.1",
        "partitions": ["gpu", "debug"],
        "boot_time": some(50),
    }
    rows = [
        record | {"name": "gpu01", "gres": "gpu:nvidia_h100:8(S:0-1),nic:2", "state": ["MIXED"]},
        record | {"name": "gpu02", "gres": "gpu:mi300x:8", "state": ["IDLE", "DRAIN"], "reason": "fans"},
        record | {"name": "gpu03", "gres": "gpu:8", "state": ["DOWN", "NOT_RESPONDING"], "reason": "gone"},
        record | {"name": "gpu04", "gres": "gpu:a:2,gpu:b:2", "state": ["IDLE", "CLOUD", "POWERED_DOWN"]},
        record | {"name": "gpu05", "gres": "gpu:8", "state": ["FUTURE"]},
    ]
    found = [node_from(row) for row in read_nodes(response(nodes=rows))]
    assert found[4] is None
    nodes = [node for node in found if node is not None]
    assert [(n.gpu_count, n.gpu_model, n.vendor, n.ready, n.cordoned) for n in nodes] == [
        (8, "NVIDIA_H100", "nvidia", True, False),
        (8, "AMD_Instinct_MI300X_OAM", "amd", True, True),
        (8, "", "", False, False),
        (4, "", "", True, False),
    ]
    assert nodes[2].not_ready_reason == "Slurm says DOWN: gone"
    assert (nodes[0].aliases, nodes[0].labels["slurm/partitions"]) == (("10.0.0.1",), "gpu,debug")


def test_lines_of_scontrol_are_parsed_with_any_text_in_the_reason() -> None:
    (record,) = nodes_in_text(
        "NodeName=n1 Arch=x86_64 CoresPerSocket=1  Gres=gpu:a100:8(S:0-1) NodeAddr=10.0.0.1 NodeHostName=h1 "
        "OS=Linux 6.1 #1 SMP State=IDLE*+DRAIN+INVALID_REG ThreadsPerCore=1 Partitions=a,b  AllocTRES= "
        "Reason=gres/gpu count reported lower than configured (7 < 8) [slurm@2026-11-15T09:56:50]\n"
    )
    node = node_from(record)
    assert node is not None
    assert (node.gpu_count, node.cordoned, node.ready) == (8, True, False)
    assert node.not_ready_reason == (
        "Slurm says INVALID_REG: gres/gpu count reported lower than configured (7 < 8)"
    )


def test_gpus_are_counted_in_every_notation() -> None:
    assert count_in("gpu:a100:3(IDX:2-4),gpu:v100:1(IDX:0)") == 4
    assert count_in("cpu=2,gres/gpu=4,gres/gpu:a100=4,gres/shard=8") == 4
    assert [count_in(text) for text in ("gpu", "gres:gpu:2", "gres/gpu:a100:2", "gpu:4(CNT:4)", "", "nic:2")] == [
        1, 2, 2, 4, 0, 0,
    ]  # fmt: skip
    assert indices_in("gpu:a100:3(IDX:0,2-3),gpu:v100:0(IDX:N/A)") == (0, 2, 3)
    assert (type_in("gpu:a100:8(S:0-1)"), type_in("gpu:a:1,gpu:b:1")) == ("a100", "")


def test_node_names_are_expanded_in_order() -> None:
    assert expand("gpu[01-03,7],login,r[1-2]n[9-10]") == (
        "gpu01", "gpu02", "gpu03", "gpu7", "login", "r1n9", "r1n10", "r2n9", "r2n10",
    )  # fmt: skip
    assert (expand(""), numbers("0-2,5")) == ((), (0, 1, 2, 5))
    with pytest.raises(SlurmUnavailable, match="more than"):
        expand("n[0-99999],m[0-99999],o[0-99999]")


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=30, unique=True), st.integers(1, 6))
def test_abbreviated_names_are_expanded(found: list[int], width: int) -> None:
    names = [f"node-{number:0{width}d}" for number in sorted(found)]
    brackets = ",".join(name.removeprefix("node-") for name in names)
    assert expand(f"node-[{brackets}]") == tuple(names)


@given(st.integers(0, 500), st.integers(1, 40))
def test_spreading_keeps_the_total(gpus: int, count: int) -> None:
    allocations = spread_evenly(gpus, tuple(f"n{number}" for number in range(count)))
    assert sum(share.gpus for share in allocations) == gpus
    assert max((s.gpus for s in allocations), default=0) - min((s.gpus for s in allocations), default=0) <= 1


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(max_size=8)
    | st.sampled_from([some(3), NONE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(OF_25_05)), _JSON, max_size=8))
def test_any_value_in_a_field_is_accepted(strange: dict[str, Any]) -> None:
    for record in read_jobs(response(jobs=[OF_23_11 | strange])):
        job = job_from(record)
        if job is not None:
            objects_of(job, "u", "")


@pytest.mark.parametrize(
    ("tasks", "count"),
    [("0-20:4%2", 6), ("1-99:3", 33), ("7", 1), ("1,3,5-7", 5), ("0-20:0", 21), ("", 1), ("1,3,...", 2)],
)
def test_pending_tasks_are_counted_in_every_notation(tasks: str, count: int) -> None:
    waits = OF_23_11 | {
        "job_state": ["PENDING"], "nodes": "", "gres_detail": [], "array_job_id": some(71), "array_task_string": tasks,
    }  # fmt: skip
    assert tasks_waiting(only_job(waits)) == count


def test_shards_count_as_their_share_of_a_gpu() -> None:
    per_gpu = {"n1": shards_per_gpu("gpu:a100:2(S:0-1),shard:a100:8(S:0-1)")}
    assert per_gpu == {"n1": 4}
    assert indices_in("shard:a100:3(0/4,3/4)", SHARD) == (1,)
    common = {"job_id": 7, "job_state": ["RUNNING"], "nodes": "n1", "start_time": 5, "submit_time": 1}
    for record, gpus, share, held in (
        ({"gres_detail": ["shard:3(IDX:0)"], "tres_per_node": "gres:shard:3"}, 1, 0.75, (0,)),  # 22.05
        ({"gres_detail": ["shard:a100:1(0/4,1/4)"]}, 1, 0.25, (1,)),
        ({"gres_detail": ["shard:a100:6(2/4,4/4)"]}, 2, 0.75, (0, 1)),
        ({"tres_alloc_str": "cpu=1,gres/shard=1"}, 1, 0.25, ()),
        ({"tres_per_node": "gres/shard:3"}, 1, 0.75, ()),
    ):
        job = only_job({**common, **record})
        assert job is not None
        (pod,) = objects_of(job, "u", "", per_gpu).pods
        assert (pod.gpus, pod.share, pod.held) == (gpus, share, held)
