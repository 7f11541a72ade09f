import csv
import io
from typing import Any

import httpx
import pytest
from tests.server.live.conftest import NOW


async def data(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_the_overview_counts_nodes_by_state_and_gpus_by_the_contracts_rules(
    http: httpx.AsyncClient,
) -> None:
    seen = await data(http, "/api/clusters/overview")
    assert (seen["totalNodes"], seen["healthyNodes"], seen["faultyNodes"]) == (6, 4, 2)
    assert (seen["fullyIdleNodes"], seen["partiallyIdleNodes"], seen["busyNodes"]) == (2, 1, 1)
    # idle 8, half 8, full 4 are capacity; cordoned, broken and sick are not; half holds 0, 1 and 5, full all.
    assert seen["allocationRate"] == round((3 + 4) / 20, 4)
    # GPUs 0 and 1 of half, all of full; GPU 5 has no reading, idle's GPU is not allocated.
    assert seen["utilization"] == round((90 + 70 + 50 + 51 + 52 + 53) / 6 / 100, 4)
    assert seen["storageStat"] == {
        "totalCapacity": "0TB",
        "usedCapacity": "0TB",
        "availableCapacity": "0TB",
        "utilizationRate": 0.0,
        "note": "nothing in the metric source measures this",
    }
    assert seen["rdmaClusterStat"]["totalPorts"] == 0


async def test_consumers_are_top_level_owners_with_most_gpus_first(http: httpx.AsyncClient) -> None:
    page = await data(http, "/api/clusters/consumers")
    assert page["total"] == 3
    assert [(row["kind"], row["name"], row["stat"]["gpuRequest"]) for row in page["data"]] == [
        ("PyTorchJob", "bert", 6),
        ("Pod", "bare", 1),
        ("Deployment", "chat", 1),
    ]
    assert page["data"][0]["stat"]["gpuUtilization"] == round((90 + 70 + 50 + 51 + 52 + 53) / 6 / 100, 4)
    assert page["data"][0]["pods"] is None
    assert page["data"][1]["stat"]["gpuUtilization"] is None


async def test_a_page_past_the_end_is_empty_with_the_right_total(http: httpx.AsyncClient) -> None:
    assert await data(http, "/api/clusters/consumers?pageNum=9&pageSize=2") == {"data": [], "total": 3}


async def test_the_heat_map_shows_the_top_gpus_of_the_whole_cluster(http: httpx.AsyncClient) -> None:
    seen = await data(http, "/api/clusters/gpuHeatmap")
    hot = [(point["nodeName"], point["deviceId"], point["value"]) for point in seen["utilization"]["data"]]
    assert hot == [
        ("idle", 0, 100.0),
        ("half", 0, 90.0),
        ("half", 1, 70.0),
        ("full", 3, 53.0),
        ("full", 2, 52.0),
    ]
    assert (seen["utilization"]["unit"], seen["power"]["unit"], seen["temperature"]["unit"]) == (
        "%",
        "W",
        "℃",
    )
    assert [seen[name]["serial"] for name in ("utilization", "power", "temperature")] == [1, 2, 3]
    assert seen["temperature"]["data"] == []
    assert len((await data(http, "/api/clusters/gpuHeatmap?topK=2"))["power"]["data"]) == 2


async def test_workloads_are_listed_newest_first_with_their_gpus_by_model(http: httpx.AsyncClient) -> None:
    page = await data(http, "/api/workloads")
    rows = {row["name"]: row for row in page["data"]}
    assert page["total"] == 5
    assert [row["startAt"] for row in page["data"]] == sorted(
        (row["startAt"] for row in page["data"]), reverse=True
    )
    assert rows["bert"]["gpuAllocation"] == {"AMD_Instinct_MI300X_OAM": 4, "NVIDIA_H200": 2}
    assert (rows["bert"]["status"], rows["bert"]["statusColor"], rows["bert"]["endAt"]) == (
        "Running",
        "green",
        0,
    )
    assert (rows["done"]["status"], rows["done"]["gpuAllocated"], rows["done"]["endAt"]) == (
        "Completed",
        4,
        NOW - 4500,
    )
    assert (rows["waits"]["status"], rows["waits"]["statusColor"], rows["waits"]["gpuAllocated"]) == (
        "Pending",
        "yellow",
        0,
    )
    assert "web" not in rows


async def test_a_waiting_workload_shows_what_it_requests_and_why_it_waits(http: httpx.AsyncClient) -> None:
    rows = {row["name"]: row for row in (await data(http, "/api/workloads"))["data"]}
    detail = await data(http, "/api/workloads/uid-waits")
    reason = "0/6 nodes fit: 6 have other labels than the claim's selector"
    for found in (rows["waits"], detail):
        assert (found["gpuRequested"], found["gpuModelRequested"], found["waitingReason"]) == (
            8,
            "NVIDIA_H100",
            reason,
        )
    assert (rows["bert"]["gpuRequested"], rows["bert"]["waitingReason"]) == (6, "")
    assert (rows["done"]["gpuRequested"], rows["done"]["gpuModelRequested"]) == (0, "")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("name=BER", {"bert"}),
        ("kind=Deployment", {"chat"}),
        ("namespace=prod", {"chat"}),
        ("status=Pending", {"waits"}),
        ("source=slurm", set()),
        ("name=' OR 1=1 --", set()),
        ("pageSize=2&pageNum=99", set()),
        ("model=NVIDIA-H200", {"bert", "chat", "bare", "done"}),
        ("model=nvidia h200&namespace=prod", {"chat"}),
        ("model=MI300X", {"bert"}),
        ("model=h100", {"waits"}),
        ("model=NVIDIA-H100-80GB-HBM3", {"waits"}),
        ("model=L4", set()),
    ],
)
async def test_workloads_are_filtered(http: httpx.AsyncClient, query: str, names: set[str]) -> None:
    assert {row["name"] for row in (await data(http, f"/api/workloads?{query}"))["data"]} == names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("sort=name", ["bare", "bert", "chat", "done", "waits"]),
        ("sort=name&reverse=true", ["waits", "done", "chat", "bert", "bare"]),
        ("sort=gpus&status=Running", ["bert", "bare", "chat"]),
        ("sort=gpus&reverse=true&status=Running", ["chat", "bare", "bert"]),
        ("sort=name&reverse=true&pageSize=3&pageNum=2", ["bert", "bare"]),
        ("sort=name&pageSize=3&pageNum=2", ["done", "waits"]),
        ("sort=name&reverse=true&pageSize=3&pageNum=3", []),
    ],
)
async def test_workloads_are_sorted(http: httpx.AsyncClient, query: str, names: list[str]) -> None:
    assert [row["name"] for row in (await data(http, f"/api/workloads?{query}"))["data"]] == names


async def test_the_default_order_can_be_reversed(http: httpx.AsyncClient) -> None:
    newest = [row["uid"] for row in (await data(http, "/api/workloads"))["data"]]
    oldest = [row["uid"] for row in (await data(http, "/api/workloads?reverse=true"))["data"]]
    assert oldest == newest[::-1]


async def test_nodes_are_sorted(http: httpx.AsyncClient) -> None:
    async def names(query: str) -> list[str]:
        return [row["name"] for row in (await data(http, f"/api/nodes?{query}"))["data"]]

    by_name = await names("")
    assert by_name == sorted(by_name)
    assert await names("reverse=true") == by_name[::-1]
    assert (await names("sort=free"))[0] == "idle"
    assert set((await names("sort=state"))[:2]) == {"broken", "sick"}
    rows = (await data(http, "/api/nodes?sort=utilization"))["data"]
    measured = [row["utilization"] for row in rows if row["utilization"] is not None]
    assert measured == sorted(measured, reverse=True)
    assert all(row["utilization"] is None for row in rows[len(measured) :])


@pytest.mark.parametrize("spelling", ["AMD_Instinct_MI300X_OAM", "AMD Instinct MI300X", "mi300x"])
async def test_nodes_are_filtered_by_model_in_any_spelling(http: httpx.AsyncClient, spelling: str) -> None:
    page = await data(http, f"/api/nodes?model={spelling}")
    assert [(row["name"], row["gpuModel"]) for row in page["data"]] == [("full", "AMD_Instinct_MI300X_OAM")]
    assert (await data(http, "/api/nodes?model=NVIDIA-L4"))["total"] == 0


async def test_a_workload_shows_its_pods_and_its_hierarchy(http: httpx.AsyncClient) -> None:
    detail = await data(http, "/api/workloads/dep")
    assert (detail["apiVersion"], detail["kind"], detail["name"]) == ("apps/v1", "Deployment", "chat")
    pod = {"nodeName": "half", "podNamespace": "prod", "podName": "chat-a", "status": "Running", "claim": ""}
    assert detail["pods"] == [pod]
    tree = await data(http, "/api/workloads/dep/hierarchy")
    assert tree["children"][0]["kind"] == "ReplicaSet"
    assert tree["children"][0]["children"] == [
        {"kind": "Pod", "name": "chat-a", "namespace": "prod", "uid": "uid-chat-a", "children": []}
    ]


async def test_metadata_lists_namespaces_and_kinds(http: httpx.AsyncClient) -> None:
    assert await data(http, "/api/workloadMetadata") == {
        "namespaces": ["ml", "prod"],
        "kinds": ["Deployment", "Pod", "PyTorchJob"],
        "models": ["AMD_Instinct_MI300X_OAM", "NVIDIA_H200"],
        "teams": ["ml", "nlp", "prod"],
        "users": [],
        "sources": ["k8s"],
        "racks": [],
    }


async def test_a_workloads_series_are_cut_to_the_time_in_which_it_held_the_gpu(
    http: httpx.AsyncClient,
) -> None:
    start, end = int(NOW - 3900), int(NOW)
    graphs = await data(http, f"/api/workloads/job/metrics?start={start}&end={end}&step=300")
    series = {line["name"]: line["points"] for line in graphs["GPU Utilization"]["series"]}
    assert sorted(series) == [f"full/GPU-{i}" for i in range(4)] + ["half/GPU-0", "half/GPU-1"]
    assert all(time >= (NOW - 3000) * 1000 for _, time in series["half/GPU-0"])
    assert {value for value, _ in series["half/GPU-0"]} == {0.9}
    assert graphs["GPU Power"]["config"] == {"yAxisUnit": "W"}
    assert [graphs[name]["serial"] for name in graphs] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/api/workloads/none", 404, "Workload with UID 'none' not found"),
        ("/api/workloads/none/hierarchy", 404, "not found"),
        ("/api/workloads/none/metrics?start=0&end=60", 404, "not found"),
        ("/api/workloads/job/metrics?start=0", 400, "parameter end is missing"),
        ("/api/workloads/job/metrics?start=x&end=1", 400, "parameter start"),
        ("/api/workloads/job/metrics?start=0&end=100000&step=1", 400, "11000"),
        ("/api/workloads/job/metrics?start=10&end=1", 400, "start"),
        ("/api/workloads/job/metrics?start=0&end=10&step=0", 400, "parameter step"),
        ("/api/workloads/job/trainingPerformance?start=5&end=1", 400, "start"),
        ("/api/workloads?status=Dancing", 400, "parameter status"),
        ("/api/workloads?pageNum=0", 400, "parameter pageNum"),
        ("/api/workloads?orderBy=name", 400, "parameter orderBy"),
        ("/api/clusters/overview?cluster=elsewhere", 404, "no cluster 'elsewhere'"),
        ("/api/clusters/gpuHeatmap?topK=1001", 400, "parameter topK"),
        ("/api/nodes/none", 404, "no node 'none'"),
    ],
)
async def test_what_is_wrong_is_said_in_the_familys_envelope(
    http: httpx.AsyncClient, path: str, status: int, part: str
) -> None:
    answer = await http.get(path)
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, status)
    assert part in body["message"]


async def test_live_gpus_have_null_for_what_nobody_measures(http: httpx.AsyncClient) -> None:
    answer = (await http.get("/api/v1/gpu/metrics")).json()
    assert (answer["success"], answer["error"], answer["message"]) == (
        True,
        None,
        "GPU metrics retrieved successfully",
    )
    rows = {(row["node_name"], row["gpu_index"]): row for row in answer["data"]}
    assert list(rows) == sorted(rows)
    assert rows["half", 0]["memory_used"] == 80.0
    assert rows["half", 0]["memory_utilization"] == pytest.approx(80 / 141 * 100, abs=1e-3)
    assert rows["half", 5]["utilization"] is None
    assert rows["full", 0]["memory_used"] is None
    assert rows["full", 0]["temperature"] is None
    assert rows["full", 0]["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("query", "gpus"),
    [
        ("node=idle", [("idle", 0)]),
        ("workload=dep", [("half", 5)]),
        ("namespace=prod", [("half", 5)]),
        ("workload=none", []),
    ],
)
async def test_live_gpus_are_filtered(
    http: httpx.AsyncClient, query: str, gpus: list[tuple[str, int]]
) -> None:
    rows = await data(http, f"/api/v1/gpu/metrics?{query}")
    assert [(row["node_name"], row["gpu_index"]) for row in rows] == gpus


async def test_processes_carry_mebibytes_and_null(http: httpx.AsyncClient) -> None:
    rows = await data(http, "/api/v1/gpu/processes")
    assert rows[0] | {"timestamp": ""} == {
        "node_name": "half",
        "gpu_index": 0,
        "pid": 4242,
        "process_name": "python",
        "user": "alice",
        "command": "python train.py",
        "gpu_memory": 1024.0,
        "cpu": 8.5,
        "memory": None,
        "timestamp": "",
    }


async def test_a_node_shows_health_holders_and_processes(http: httpx.AsyncClient) -> None:
    sick = await data(http, "/api/nodes/sick")
    assert sick["state"] == "faulty"
    assert sick["gpus"][1]["healthReason"] == "XID 79: fell off the bus"
    half = await data(http, "/api/nodes/half")
    assert [holder["podName"] for holder in half["gpus"][5]["holders"]] == ["bare", "chat-a"]
    assert half["gpus"][5]["holders"][1]["workloadUid"] == "dep"
    assert half["processes"][0]["pid"] == 4242
    page = await data(http, "/api/nodes?state=faulty")
    assert ([row["name"] for row in page["data"]], page["total"]) == (["broken", "sick"], 2)


async def test_any_list_comes_as_csv(http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/clusters/consumers", headers={"accept": "text/csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["stat.gpuRequest"] for row in rows] == ["6", "1", "1"]
    single = await http.get("/api/clusters/overview", headers={"accept": "text/csv"})
    assert single.headers["content-type"] == "application/json"


async def test_unchanged_readings_are_not_sent_again(http: httpx.AsyncClient) -> None:
    first = await http.get("/api/v1/gpu/metrics")
    again = await http.get("/api/v1/gpu/metrics", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
