import httpx
import pytest
from tests.server.live.test_live import data


async def test_gpus_of_all_nodes_have_states_readings_and_holders(http: httpx.AsyncClient) -> None:
    page = await data(http, "/api/gpus?pageSize=1000")
    rows = {(row["node"], row["index"]): row for row in page["data"]}
    assert len(rows) == page["total"]
    assert list(rows) == sorted(rows)
    assert (rows["half", 0]["state"], rows["half", 0]["utilization"]) == ("held", 0.9)
    assert sorted(holder["podName"] for holder in rows["half", 5]["holders"]) == ["bare", "chat-a"]
    assert (rows["idle", 3]["state"], rows["idle", 3]["holders"]) == ("free", [])
    assert {row["state"] for row in page["data"] if row["node"] == "cordoned"} == {"cordoned"}


async def test_a_gpu_in_the_list_equals_the_one_of_its_node(http: httpx.AsyncClient) -> None:
    listed = (await data(http, "/api/gpus?node=half"))["data"]
    shown = (await data(http, "/api/nodes/half"))["gpus"]
    assert [{k: v for k, v in row.items() if k not in ("node", "state")} for row in listed] == shown


async def test_gpus_are_filtered_and_paged(http: httpx.AsyncClient) -> None:
    held = await data(http, "/api/gpus?state=held&node=half&pageSize=2")
    assert ([row["index"] for row in held["data"]], held["total"]) == ([0, 1], 3)
    assert [
        row["index"]
        for row in (await data(http, "/api/gpus?state=held&node=half&pageSize=2&pageNum=2"))["data"]
    ] == [5]
    models = {row["model"] for row in (await data(http, "/api/gpus?model=mi300x"))["data"]}
    assert len(models) == 1


@pytest.mark.parametrize(
    ("selector", "names"), [("team=nlp", ["bert"]), ("team in (vision)", []), ("!team,none", [])]
)
async def test_workloads_are_selected_by_label(
    http: httpx.AsyncClient, selector: str, names: list[str]
) -> None:
    page = await data(http, f"/api/workloads?labelSelector={selector}")
    assert [row["name"] for row in page["data"]] == names


@pytest.mark.parametrize("path", ["nodes", "gpus", "workloads"])
async def test_a_wrong_label_selector_is_refused(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(f"/api/{path}", params={"labelSelector": "a=b=c"})
    assert answer.status_code == 400
    assert "is not a label selector" in answer.json()["message"]
