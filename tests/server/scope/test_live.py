"""What a caller who is limited to a namespace sees of workloads, nodes and GPUs."""

from typing import Any

import httpx
import pytest
from tests.accounting.histories import Server
from tests.server.scope.conftest import NOW, SECRET, as_caller

from gpufleet.fleet.clusters import Cluster

SPAN = f"start={int(NOW) - 1200}&end={int(NOW)}"
SPAN_MS = f"start={int(NOW - 1200) * 1000}&end={int(NOW) * 1000}"


async def data(http: httpx.AsyncClient, path: str, caller: str = "mine") -> Any:
    answer = await http.get(path, headers=as_caller(caller))
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_a_response_says_which_namespaces_it_is_limited_to(http: httpx.AsyncClient) -> None:
    for path in ("/api/workloads", "/api/v1/gpu/metrics", "/api/v1/gpu-aggregation/namespaces"):
        limited = await http.get(path, headers=as_caller("both"))
        assert limited.json()["scope"] == {"namespaces": ["mine", SECRET]}
        assert limited.headers["x-gpufleet-scope"] == f"mine,{SECRET}"
        full = await http.get(path, headers=as_caller("all"))
        assert "scope" not in full.json()
        assert "x-gpufleet-scope" not in full.headers
    table = await http.get("/api/workloads", headers=as_caller("mine", accept="text/csv"))
    assert table.headers["x-gpufleet-scope"] == "mine"
    public = await http.get("/api/clusters", headers=as_caller("mine"))
    assert "scope" not in public.json()


async def test_routes_about_the_whole_server_are_refused(http: httpx.AsyncClient) -> None:
    refused = await http.get("/metrics", headers=as_caller("mine"))
    assert refused.status_code == 403
    assert refused.json()["error"] == "this takes access to every namespace; alice is limited to some"
    debug = await http.get("/debug/vars", headers=as_caller("mine-operator"))
    assert debug.status_code == 403


async def test_lists_and_totals_count_the_visible_workloads_only(http: httpx.AsyncClient) -> None:
    workloads = await data(http, "/api/workloads")
    assert {row["name"] for row in workloads["data"]} == {"bert", "mine-half", "mine-ended", "mine-waits"}
    assert workloads["total"] == 4
    assert await data(http, f"/api/workloads?namespace={SECRET}") == {"data": [], "total": 0}
    consumers = await data(http, "/api/clusters/consumers")
    assert ([row["name"] for row in consumers["data"]], consumers["total"]) == (["bert", "mine-half"], 2)
    metadata = await data(http, "/api/workloadMetadata")
    assert (metadata["namespaces"], metadata["kinds"]) == (["mine"], ["Pod", "PyTorchJob"])
    assert (await data(http, "/api/workloads", "both")) == (await data(http, "/api/workloads", "all"))
    consumers = [await data(http, "/api/clusters/consumers", caller) for caller in ("both", "all")]
    assert consumers[0] == consumers[1]


async def test_a_workload_of_another_namespace_is_like_one_that_does_not_exist(
    http: httpx.AsyncClient,
) -> None:
    headers = as_caller("mine", traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
    for path in ("", "/hierarchy", f"/metrics?{SPAN}", f"/trainingPerformance?{SPAN_MS}"):
        missing = await http.get(f"/api/workloads/nothing{path}", headers=headers)
        for uid in (f"{SECRET}-job", f"{SECRET}-0", f"{SECRET}-ended"):
            hidden = await http.get(f"/api/workloads/{uid}{path}", headers=headers)
            assert hidden.status_code == missing.status_code == 404
            assert hidden.text.replace(uid, "nothing") == missing.text
            assert hidden.headers.keys() == missing.headers.keys()


async def test_an_operator_who_is_limited_to_namespaces_may_not_report_training(
    http: httpx.AsyncClient,
) -> None:
    rows = [{"metric": "loss", "value": 1.0, "timestamp": int(NOW * 1000)}]
    for path, body in (("trainingPerformance", rows), ("reportToken", None)):
        for uid in ("job", f"{SECRET}-job", "nothing"):
            url = f"/api/workloads/{uid}/{path}"
            answer = await http.post(url, json=body, headers=as_caller("mine-operator"))
            assert (answer.status_code, SECRET in answer.text) == (403, False)


async def test_a_node_shows_its_gpus_but_not_the_work_of_others(http: httpx.AsyncClient) -> None:
    node = await data(http, "/api/nodes/a")
    gpus = node["gpus"]
    assert [gpu["utilization"] for gpu in gpus] == [0.5, 0.51, None, None, 0.54, None, None, None]
    assert [gpu["memoryTotal"] for gpu in gpus] == [141.0] * 8
    for quantity in ("memoryUsed", "temperature", "power"):
        assert [gpu[quantity] is None for gpu in gpus] == [gpu["utilization"] is None for gpu in gpus]
    nobody = {"podNamespace": "", "podName": "", "podUid": "", "workloadUid": ""}
    assert gpus[0]["holders"][0]["podName"] == "mine-0"
    assert gpus[2]["holders"] == [{**nobody, "share": 1.0}]
    assert [holder["podName"] for holder in gpus[4]["holders"]] == ["mine-half", ""]
    assert gpus[5]["holders"] == []
    assert [process["processName"] for process in node["processes"]] == ["mine"]
    assert node["gpuAllocated"] == 5
    assert node["utilization"] == pytest.approx(0.5167)
    other = await data(http, "/api/nodes/b")
    assert (other["state"], other["gpuAllocated"], other["utilization"]) == ("faulty", 1, None)
    rows = (await data(http, "/api/nodes?sort=utilization"))["data"]
    assert [(row["name"], row["utilization"]) for row in rows] == [("a", 0.5167), ("b", None)]


async def test_readings_are_those_of_the_callers_gpus(http: httpx.AsyncClient) -> None:
    metrics = await data(http, "/api/v1/gpu/metrics")
    assert len(metrics) == 10
    assert {(row["node_name"], row["gpu_index"]) for row in metrics if row["utilization"] is not None} == {
        ("a", 0),
        ("a", 1),
        ("a", 4),
    }
    hidden = [row for row in metrics if row["utilization"] is None]
    for quantity in ("memory_used", "memory_free", "memory_utilization", "temperature", "power"):
        assert {row[quantity] for row in hidden} == {None}
    assert await data(http, f"/api/v1/gpu/metrics?namespace={SECRET}") == []
    assert await data(http, f"/api/v1/gpu/metrics?workload={SECRET}-job") == []
    assert [row["gpu_index"] for row in await data(http, "/api/v1/gpu/metrics?workload=job")] == [0, 1]
    processes = await data(http, "/api/v1/gpu/processes")
    assert [row["process_name"] for row in processes] == ["mine"]
    both = await data(http, "/api/v1/gpu/processes", "both")
    assert both == await data(http, "/api/v1/gpu/processes", "all")


async def test_the_map_shows_who_is_allocated_and_the_values_of_the_callers_gpus(
    http: httpx.AsyncClient,
) -> None:
    limited, full = await data(http, "/api/v1/gpu/map"), await data(http, "/api/v1/gpu/map", "all")
    assert limited["values"] == [50, 51, None, None, 54, None, None, None, None, None]
    assert limited["marks"] == full["marks"] == "hhhhhfffhx"
    heat = await data(http, "/api/clusters/gpuHeatmap?topK=10")
    assert {(gpu["nodeName"], gpu["deviceId"]) for each in heat.values() for gpu in each["data"]} == {
        ("a", 0),
        ("a", 1),
        ("a", 4),
    }


async def test_a_nodes_graphs_begin_when_the_caller_got_its_gpus(
    http: httpx.AsyncClient, cluster: tuple[Cluster, Server]
) -> None:
    graphs = await data(http, f"/api/nodes/a/metrics?{SPAN}")
    assert {line["name"] for graph in graphs.values() for line in graph["series"]} == {
        "GPU-0",
        "GPU-1",
        "GPU-4",
    }
    assert all(line["points"] for line in graphs["GPU Power"]["series"])
    fleet = cluster[0].fleet
    pod = fleet.ownership.pods["mine-0"]
    fleet.put_pod(
        type(pod)(
            uid="late",
            name="late",
            namespace="mine",
            node="b",
            gpus=1,
            held=(1,),
            bound=NOW - 400,
            phase=pod.phase,
        )
    )
    series = (await data(http, f"/api/nodes/b/metrics?{SPAN}"))["GPU Utilization"]["series"]
    assert [line["name"] for line in series] == ["GPU-1"]
    assert min(time for _, time in series[0]["points"]) >= (NOW - 400) * 1000


async def test_the_overview_counts_capacity_and_the_callers_use(http: httpx.AsyncClient) -> None:
    limited = await data(http, "/api/clusters/overview")
    full = await data(http, "/api/clusters/overview", "all")
    use = {"utilization", "measuredGpus", "idleGpus"}
    assert {key: limited[key] for key in limited if key not in use} == {
        key: full[key] for key in full if key not in use
    }
    assert (limited["measuredGpus"], limited["utilization"]) == (3, 0.5167)


@pytest.mark.parametrize("path", ["/api/v1/gpu/map", "/api/v1/gpu/metrics", "/api/workloads", "/api/nodes/a"])
async def test_kept_answers_and_entity_tags_are_not_shared_between_scopes(
    http: httpx.AsyncClient, path: str
) -> None:
    first = {caller: await http.get(path, headers=as_caller(caller)) for caller in ("all", "mine", "both")}
    again = {caller: await http.get(path, headers=as_caller(caller)) for caller in ("both", "all", "mine")}
    for caller, answer in first.items():
        assert again[caller].json()["data"] == answer.json()["data"]
        assert again[caller].headers["etag"] == answer.headers["etag"]
    tags = [answer.headers["etag"] for answer in first.values()]
    assert len(set(tags)) == 3
    for caller, answer in first.items():
        for other, tag in zip(first, tags, strict=True):
            headers = as_caller(caller, **{"if-none-match": tag})
            assert (await http.get(path, headers=headers)).status_code == (304 if caller == other else 200)
        assert answer.status_code == 200
