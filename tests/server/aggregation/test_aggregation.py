"""The routes of hourly statistics and snapshots: filters, order, pages, errors."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.accounting.histories import HOUR

from gpufleet.store import Store

START = datetime.fromtimestamp(HOUR, UTC)
FIRST, SECOND = (f"{START + timedelta(hours=h):%Y-%m-%dT%H:%M:%SZ}" for h in (0, 1))
SPAN = {"start_time": FIRST, "end_time": SECOND}


async def get(http: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    answer = await http.get(path, params=parameters)
    body = answer.json()
    assert answer.status_code == 200, body
    assert (body["code"], body["message"]) == (200, "success")
    return body["data"]


async def rejection(http: httpx.AsyncClient, path: str, **parameters: Any) -> tuple[int, str]:
    answer = await http.get(path, params=parameters)
    body = answer.json()
    assert body["code"] == answer.status_code
    assert body["message"]
    return answer.status_code, body["error"]


async def test_names_are_sorted_arrays(http: httpx.AsyncClient) -> None:
    assert await get(http, "/clusters") == ["prod"]
    assert await get(http, "/namespaces", cluster="prod") == ["ml", "prod"]
    assert await get(http, "/dimension-keys", dimension_type="label") == ["team"]
    assert await get(http, "/dimension-keys", dimension_type="annotation", **SPAN) == ["cost-center"]
    values = await get(http, "/dimension-values", dimension_type="label", dimension_key="team")
    assert values == ["(none)", "nlp"]
    assert await get(http, "/namespaces", end_time="2001-01-01T00:00:00Z") == []


async def test_hours_of_a_cluster_are_a_plain_array_in_order_of_time(http: httpx.AsyncClient) -> None:
    first, second = await get(http, "/cluster/hourly-stats", **SPAN)
    assert (first["stat_hour"], second["stat_hour"]) == (FIRST, SECOND)
    assert first["cluster_name"] == "prod"
    assert (first["total_gpu_capacity"], first["allocated_gpu_count"]) == (8, 5.0)
    assert (second["allocated_gpu_count"], second["allocation_rate"]) == (6.0, 75.0)
    assert (first["sample_count"], first["idle_gpu_hours"], first["cost"]) == (12, 1.0, 17.5)
    # at each moment the mean over the GPUs held then and read: 3 of them in the first half, 5 in the second
    assert first["avg_utilization"] == round((6 * (60 + 61 + 1) + 6 * (60 + 61 + 62 + 63 + 1)) / 48, 4)


async def test_page_or_page_size_returns_a_page(http: httpx.AsyncClient) -> None:
    page = await get(http, "/namespaces/hourly-stats", page_size=3, **SPAN)
    assert {name: page[name] for name in ("total", "page", "page_size", "total_pages")} == {
        "total": 4,
        "page": 1,
        "page_size": 3,
        "total_pages": 2,
    }
    rest = await get(http, "/namespaces/hourly-stats", page=2, page_size=3, **SPAN)
    rows = [(row["stat_hour"], row["namespace"]) for row in page["data"] + rest["data"]]
    assert rows == [(FIRST, "ml"), (FIRST, "prod"), (SECOND, "ml"), (SECOND, "prod")]
    past = await get(http, "/namespaces/hourly-stats", page=9, **SPAN)
    assert (past["data"], past["total"], past["page_size"]) == ([], 4, 20)
    back = await get(http, "/cluster/hourly-stats", page=1, order_direction="desc", **SPAN)
    assert [row["stat_hour"] for row in back["data"]] == [SECOND, FIRST]


async def test_namespaces_and_unattributed_make_up_the_cluster(http: httpx.AsyncClient) -> None:
    rows = await get(http, "/namespaces/hourly-stats", start_time=FIRST, end_time=FIRST)
    assert {row["namespace"]: row["allocated_gpu_hours"] for row in rows} == {"ml": 3.0, "prod": 1.0}
    assert all(row["total_gpu_capacity"] == 8 for row in rows)
    (ml,) = await get(http, "/namespaces/hourly-stats", namespace="ml", start_time=FIRST, end_time=FIRST)
    assert (ml["active_workload_count"], ml["max_utilization"], ml["min_utilization"]) == (1, 61.5, 60.5)


async def test_labels_and_annotations_are_broken_down(http: httpx.AsyncClient) -> None:
    team = {"dimension_type": "label", "dimension_key": "team"}
    rows = await get(http, "/labels/hourly-stats", **team, start_time=FIRST, end_time=FIRST)
    assert {row["dimension_value"]: row["allocated_gpu_count"] for row in rows} == {"(none)": 2.0, "nlp": 3.0}
    one = await get(http, "/labels/hourly-stats", **team, dimension_value="nlp", **SPAN)
    assert [row["allocated_gpu_count"] for row in one] == [3.0, 4.0]
    paged = await get(http, "/labels/hourly-stats", **team, page=1, **SPAN)
    assert paged["total"] == 4
    cost = {"dimension_type": "annotation", "dimension_key": "cost-center"}
    rows = await get(http, "/labels/hourly-stats", **cost, start_time=SECOND, end_time=SECOND)
    assert [row["dimension_value"] for row in rows] == ["(none)", "cc-1"]


async def test_workloads_come_in_pages_with_all_fields(http: httpx.AsyncClient) -> None:
    page = await get(http, "/workloads/hourly-stats", namespace="ml", start_time=FIRST, end_time=FIRST)
    assert (page["total"], page["page"], page["page_size"], page["total_pages"]) == (1, 1, 20, 1)
    (row,) = page["data"]
    assert (row["workload_name"], row["workload_type"], row["owner_uid"]) == ("bert", "PyTorchJob", "job@ml")
    assert (row["allocated_gpu_count"], row["requested_gpu_count"]) == (3.0, 4.0)
    assert (row["avg_replica_count"], row["max_replica_count"], row["min_replica_count"]) == (1.5, 2, 1)
    assert (row["sample_count"], row["workload_status"]) == (36, "Running")
    assert (row["labels"], row["annotations"]) == ({"team": "nlp"}, {"cost-center": "cc-1"})
    assert row["avg_gpu_memory_used"] is None


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["bert", "idle", "bert", "idle"]),
        ({"order_direction": "desc"}, ["idle", "bert", "idle", "bert"]),
        ({"workload_type": "Pod"}, ["idle", "idle"]),
        ({"workload_type": "Pod", "namespace": "ml"}, []),
        ({"namespace": "prod"}, ["idle", "idle"]),
        ({"workload_name": "bert"}, ["bert", "bert"]),
        ({"workload_name": "bert", "namespace": "prod"}, []),
        ({"workload_type": "NoSuch"}, []),
        ({"order_by": "utilization"}, ["idle", "idle", "bert", "bert"]),
        ({"order_by": "utilization", "order_direction": "desc"}, ["bert", "bert", "idle", "idle"]),
        ({"order_by": "utilization", "namespace": "prod"}, ["idle", "idle"]),
        ({"order_by": "utilization", "workload_name": "bert"}, ["bert", "bert"]),
        ({"dimension_key": "team"}, ["bert", "bert"]),
        (
            {"dimension_key": "team", "dimension_value": "nlp", "workload_type": "PyTorchJob"},
            ["bert", "bert"],
        ),
        ({"dimension_key": "team", "dimension_value": "vision"}, []),
        ({"dimension_key": "team", "workload_name": "idle"}, []),
        (
            {
                "dimension_type": "annotation",
                "dimension_key": "cost-center",
                "dimension_value": "cc-1",
                "order_by": "utilization",
            },
            ["bert", "bert"],
        ),
        ({"page": 2, "page_size": 3}, ["idle"]),
        ({"page": 7, "page_size": 3}, []),
    ],
)
async def test_workloads_are_filtered_and_ordered(
    http: httpx.AsyncClient, filters: dict[str, Any], names: list[str]
) -> None:
    page = await get(http, "/workloads/hourly-stats", **filters, **SPAN)
    assert [row["workload_name"] for row in page["data"]] == names
    if "page" not in filters:
        assert page["total"] == len(names)


async def test_other_offsets_are_converted_and_the_ends_are_inclusive(http: httpx.AsyncClient) -> None:
    east = START + timedelta(hours=8)
    time = f"{east:%Y-%m-%dT%H:%M:%S}+08:00"
    rows = await get(http, "/cluster/hourly-stats", start_time=time, end_time=time)
    assert [row["stat_hour"] for row in rows] == [FIRST]
    later = f"{START + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}"
    rows = await get(http, "/cluster/hourly-stats", start_time=later, end_time=SECOND)
    assert [row["stat_hour"] for row in rows] == [SECOND]


async def test_the_latest_snapshot_lists_workloads_by_namespace(http: httpx.AsyncClient) -> None:
    latest = await get(http, "/snapshots/latest")
    assert (latest["dimension_type"], latest["dimension_key"], latest["dimension_value"]) == (
        "cluster",
        "",
        "",
    )
    assert (latest["total_gpu_capacity"], latest["allocated_gpu_count"]) == (8, 6)
    ml = latest["allocation_details"]["namespaces"]["ml"]
    assert (ml["allocated_gpu"], ml["workload_count"], ml["utilization"]) == (4, 1, None)
    assert ml["workloads"][0] == {
        "uid": "job@ml",
        "name": "bert",
        "namespace": "ml",
        "kind": "PyTorchJob",
        "allocated_gpu": 4,
        "utilization": None,
    }
    assert latest["allocation_details"]["annotations"]["cost-center"]["cc-1"]["allocated_gpu"] == 4
    assert "kube-system" not in latest["allocation_details"]["namespaces"]


async def test_snapshots_of_a_time_range_are_in_order(http: httpx.AsyncClient) -> None:
    listed = await get(http, "/snapshots")
    assert [row["allocated_gpu_count"] for row in listed] == [4, 6, 6]
    assert all(row["allocation_details"] == {} for row in listed)
    detailed = await get(http, "/snapshots", details="true", start_time=FIRST, end_time=FIRST)
    assert "ml" in detailed[0]["allocation_details"]["namespaces"]
    page = await get(http, "/snapshots", page=2, page_size=2)
    assert (page["total"], len(page["data"])) == (3, 1)


@pytest.mark.parametrize(
    ("path", "parameters", "status", "part"),
    [
        ("/cluster/hourly-stats", {}, 400, "start_time is missing"),
        (
            "/cluster/hourly-stats",
            {"start_time": SECOND, "end_time": FIRST},
            400,
            "start_time must not be after",
        ),
        ("/cluster/hourly-stats", {"start_time": "yesterday", "end_time": FIRST}, 400, "start_time"),
        (
            "/cluster/hourly-stats",
            {"start_time": "2025-11-05T00:00:00", "end_time": FIRST},
            400,
            "start_time",
        ),
        ("/cluster/hourly-stats", {**SPAN, "cluster": "nowhere"}, 404, "there are: prod"),
        ("/namespaces/hourly-stats", {**SPAN, "page_size": 1001}, 400, "page_size"),
        ("/workloads/hourly-stats", {**SPAN, "page": 0}, 400, "page"),
        ("/workloads/hourly-stats", {**SPAN, "order_by": "name"}, 400, "time, utilization"),
        ("/workloads/hourly-stats", {**SPAN, "order_direction": "up"}, 400, "asc, desc"),
        ("/labels/hourly-stats", SPAN, 400, "dimension_type is missing"),
        ("/labels/hourly-stats", {**SPAN, "dimension_type": "label"}, 400, "dimension_key is missing"),
        (
            "/labels/hourly-stats",
            {**SPAN, "dimension_type": "tag", "dimension_key": "x"},
            400,
            "dimension_type",
        ),
        ("/dimension-keys", {}, 400, "dimension_type is missing"),
        ("/dimension-values", {"dimension_type": "label"}, 400, "dimension_key is missing"),
        ("/snapshots/latest", {"cluster": "nowhere"}, 404, "no cluster 'nowhere'"),
        ("/snapshots", {"start_time": SECOND, "end_time": FIRST}, 400, "start_time must not be after"),
        ("/snapshots", {"details": "true", "page_size": 900}, 400, "page_size"),
    ],
)
async def test_an_invalid_parameter_is_rejected_by_name(
    http: httpx.AsyncClient, path: str, parameters: dict[str, Any], status: int, part: str
) -> None:
    got, sentence = await rejection(http, path, **parameters)
    assert got == status
    assert part in sentence


async def test_the_latest_of_no_snapshots_is_not_found(http: httpx.AsyncClient, store: Any) -> None:
    await store.accounted.open("new", float(HOUR))
    status, sentence = await rejection(http, "/snapshots/latest", cluster="new")
    assert (status, "no snapshot" in sentence) == (404, True)
    assert await get(http, "/cluster/hourly-stats", cluster="new", **SPAN) == []


async def test_a_snapshot_of_the_future_is_the_latest_only_while_there_is_no_other(
    http: httpx.AsyncClient, store: Store
) -> None:
    await store.accounted.open("new", float(HOUR))
    for cluster in ("prod", "new"):
        await store.snapshots.save(cluster, HOUR + 36_000, 99, 9.0, None, b"{}", b"")
    assert (await get(http, "/snapshots/latest"))["total_gpu_capacity"] == 8
    assert (await get(http, "/snapshots/latest", cluster="new"))["total_gpu_capacity"] == 99


async def test_a_snapshot_from_the_future_is_replaced_when_its_time_comes(store: Store) -> None:
    moment = 2_145_916_800  # as the database's own clock is right, this lies in its future
    await store.accounted.open("new", float(HOUR))
    await store.snapshots.save("new", moment, 99, 9.0, None, b"{}", b"")
    await store.snapshots.save("new", moment, 8, 4.0, None, b"{}", b"")
    assert (await store.snapshots.latest("new", moment)).total_gpu_capacity == 8
    await store.snapshots.save("new", HOUR, 8, 4.0, None, b"{}", b"")
    await store.snapshots.save("new", HOUR, 99, 9.0, None, b"{}", b"")
    assert (await store.snapshots.latest("new", HOUR)).total_gpu_capacity == 8


async def test_names_are_one_csv_column_on_request(http: httpx.AsyncClient) -> None:
    answer = await http.get("/namespaces", headers={"accept": "text/csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.text.splitlines() == ["name", "ml", "prod"]


async def test_rows_come_as_csv_to_those_who_ask(http: httpx.AsyncClient) -> None:
    answer = await http.get("/workloads/hourly-stats", params=SPAN, headers={"accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert len(answer.text.splitlines()) == 5


@pytest.mark.parametrize("order", ["time", "utilization"])
async def test_all_time_may_be_asked_for(http: httpx.AsyncClient, order: str) -> None:
    ages = {"start_time": "0001-01-01T00:00:00Z", "end_time": "9999-12-31T23:59:59Z"}
    page = await get(http, "/workloads/hourly-stats", order_by=order, **ages)
    assert page["total"] == len(page["data"]) > 0
    assert len(await get(http, "/cluster/hourly-stats", **ages)) == 2
    assert await get(http, "/namespaces", **ages) == ["ml", "prod"]
    assert len(await get(http, "/snapshots", **ages)) == 3


# The running hour: at 02:01:40 it has one sample


LONG = {**SPAN, "end_time": f"{START + timedelta(hours=5):%Y-%m-%dT%H:%M:%SZ}", "include_current": "true"}


async def test_the_running_hour_is_returned_on_request_and_marked(http: httpx.AsyncClient) -> None:
    rows = await get(http, "/cluster/hourly-stats", **LONG)
    assert [row["partial"] for row in rows] == [False, False, True]
    last = rows[-1]
    assert last["total_gpu_capacity"] == 8
    assert last["allocated_gpu_hours"] == 6 * 100 / 3600
    assert last["allocated_gpu_count"] == 6.0
    assert last["allocation_rate"] == 75.0
    assert last["observed_share"] == 50 / 3600  # the server was last stored 50 seconds after the hour
    finished = await get(http, "/cluster/hourly-stats", **{**LONG, "include_current": "false"})
    assert finished == rows[:2]
    for path in ("/namespaces/hourly-stats", "/labels/hourly-stats"):
        label = {"dimension_type": "label", "dimension_key": "team"} if "labels" in path else {}
        parts = [row for row in await get(http, path, **LONG, **label) if row["partial"]]
        expected = 6 if label else 5  # without kube-system
        assert sum(row["allocated_gpu_count"] for row in parts) == expected


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("order", ["time", "utilization"])
async def test_pages_with_the_running_hour_make_up_the_whole_list(
    http: httpx.AsyncClient, direction: str, order: str
) -> None:
    ordered = {**LONG, "order_by": order, "order_direction": direction}
    whole = await get(http, "/workloads/hourly-stats", **ordered)
    assert (whole["total"], len(whole["data"])) == (6, 6)
    assert sum(row["partial"] for row in whole["data"]) == 2
    assert {row["workload_status"] for row in whole["data"] if row["partial"]} == {"Running"}

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        name = (row["stat_hour"], row["namespace"], row["workload_type"], row["workload_name"])
        return name if order == "time" else (row["avg_utilization"], *name)

    assert whole["data"] == sorted(whole["data"], key=key, reverse=direction == "desc")
    for size in (1, 2, 4):
        pages = [
            await get(http, "/workloads/hourly-stats", **ordered, page=number + 1, page_size=size)
            for number in range(-(-6 // size))
        ]
        assert [row for page in pages for row in page["data"]] == whole["data"]
        assert {page["total"] for page in pages} == {6}


async def test_filters_select_rows_of_the_running_hour(http: httpx.AsyncClient) -> None:
    page = await get(http, "/workloads/hourly-stats", **LONG, dimension_key="team", dimension_value="nlp")
    assert [(row["workload_name"], row["partial"]) for row in page["data"]] == [
        ("bert", False),
        ("bert", False),
        ("bert", True),
    ]


async def test_a_label_value_needs_its_key(http: httpx.AsyncClient) -> None:
    response = await http.get("/workloads/hourly-stats", params={**SPAN, "dimension_value": "nlp"})
    assert response.status_code == 400
