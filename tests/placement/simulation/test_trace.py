import random

import pytest

from gpufleet.errors import InvalidRequest
from gpufleet.placement import CandidateGpu, CandidateNode, Demand, Exclusivity, Request
from gpufleet.placement.simulation.chart import chart
from gpufleet.placement.simulation.replay import POLICIES, replay, size_of
from gpufleet.placement.simulation.trace import Task, arrivals, read_nodes, read_tasks

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,G2\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "a,12000,16384,1,1000,,LS\nb,6000,12288,1,460,P100|T4,LS\nc,9000,1024,0,0,,BE\nd,1000,1024,2,1000,G2,LS\n"
)


def test_the_columns_of_openb_are_read() -> None:
    nodes, tasks = read_nodes(NODES.splitlines()), read_tasks(PODS.splitlines())
    assert [(node.name, len(node.gpus), node.cpu_milli, node.memory_mib) for node in nodes] == [
        ("n0", 2, 64000, 262144),
        ("n1", 8, 96000, 393216),
    ]
    assert nodes[1].gpus[7] == CandidateGpu(7, model="G2")
    whole, shared, cpu, pair = (task.request for task in tasks)
    assert (whole.count, whole.exclusivity, whole.gpu_milli) == (1, Exclusivity.EXCLUSIVE, 1000)
    assert (shared.share_milli, shared.models, shared.gpu_milli) == (460, frozenset({"P100", "T4"}), 460)
    assert (cpu.count, cpu.cpu_milli, cpu.gpu_milli) == (0, 9000, 0)
    assert (pair.count, pair.gpu_milli, pair.models) == (2, 2000, frozenset({"G2"}))


def test_missing_columns_mean_unknown_or_whole() -> None:
    (node,) = read_nodes(["sn,gpu", "n0,4"])
    assert (node.cpu_milli, node.memory_mib, node.gpus[0].model) == (None, None, "")
    (task,) = read_tasks(["name,num_gpu,cpu_milli", "a,1,500"])
    assert task.request == Request(count=1, policy=task.request.policy, share_milli=1000, cpu_milli=500)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "the file is empty"),
        (["sn,gpu", ",1"], "nodes, line 2: a node needs a name"),
        (["sn,gpu", "n0,many"], "line 2: gpu is 'many'; it must be a number of 0 or more"),
        (["sn,gpu", "n0,inf"], "line 2: gpu is 'inf'; it must be a number of 0 or more"),
        (["sn,gpu", "n0,1e12"], "nodes, line 2: gpu is 1000000000000; the maximum is 1024"),
        (["sn,gpu", "n0,8", "n1,8", "n0,8"], "nodes, line 4: node n0 repeats line 2"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_with_the_line(lines: list[str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read_nodes(lines)


def test_arrivals_are_every_task_once_and_then_drawn_up_to_the_load() -> None:
    tasks = [Task(f"t{at}", Request(count=1 + at % 2, cpu_milli=at)) for at in range(20)]
    order = arrivals(tasks, 100_000, 1.3, random.Random(7))
    assert order == arrivals(tasks[::-1], 100_000, 1.3, random.Random(7))
    assert sorted(request.cpu_milli for request in order[:20]) == list(range(20))
    asked = sum(request.gpu_milli for request in order)
    assert 130_000 <= asked < 130_000 + 2000
    assert arrivals([Task("c", Request(count=0))], 1000, 1.3, random.Random(1)) == [Request(count=0)]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_fills_what_it_can_and_accounts_for_every_task(policy: str) -> None:
    nodes = [
        CandidateNode(f"n{at}", (CandidateGpu(0), CandidateGpu(1)), cpu_milli=8000, memory_mib=8000)
        for at in range(10)
    ]
    rng = random.Random(3)
    tasks = [
        Request(count=rng.choice([0, 1, 1, 2]), cpu_milli=rng.choice([500, 1500]), memory_mib=100)
        for _ in range(60)
    ]
    outcome = replay(nodes, tasks, policy, Demand.of_requests(tasks), random.Random(1))
    assert outcome.arrived == 60
    assert outcome.placed + sum(outcome.dropped.values()) == 60
    assert 80 <= outcome.gpu_allocation_percent <= 100
    free = outcome.capacity_milli - outcome.allocated_milli
    assert 0 <= outcome.fragmented_milli <= free
    again = replay(nodes, tasks, policy, Demand.of_requests(tasks), random.Random(1))
    assert (again.allocated_milli, again.dropped) == (outcome.allocated_milli, outcome.dropped)


def test_sizes_are_named_for_people() -> None:
    shared = Request(exclusivity=Exclusivity.SHARED, share_milli=500)
    assert [size_of(Request(count=0)), size_of(shared), size_of(Request(count=4))] == [
        "cpu",
        "share",
        "4 gpu",
    ]


def test_a_chart_draws_a_line_for_each_policy_and_escapes_names() -> None:
    drawn = chart({"default": [(50.0, 50.0), (130.0, 95.9)], "a<b": [(130.0, 90.0)]}, "x & y")
    assert drawn.count("<polyline") == 2
    assert "default 95.9%" in drawn
    assert "a&lt;b" in drawn
    assert "x &amp; y" in drawn
