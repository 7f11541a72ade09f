"""Who held the GPUs of a node when."""

import httpx
from tests.accounting.histories import HOUR
from tests.server.scope.conftest import SECRET, as_caller

SPAN = {"start": HOUR - 3600, "end": HOUR + 7200}


async def test_every_period_of_a_node_is_returned_with_its_gpus(http: httpx.AsyncClient) -> None:
    found = (await http.get("/api/nodes/a/occupancy", params=SPAN)).json()["data"]
    periods = {each["podName"]: each for each in found["periods"]}
    assert found["gpus"] == list(range(8))
    assert not found["truncated"]
    assert periods.keys() == {"mine-0", "mine-half", f"{SECRET}-0", f"{SECRET}-half"}
    assert (periods["mine-0"]["gpus"], periods["mine-0"]["workloadUid"]) == ([0, 1], "job@mine")
    assert (periods["mine-half"]["gpus"], periods["mine-half"]["share"]) == ([4], 0.5)
    assert periods["mine-0"]["start"] == HOUR
    assert {each["team"] for each in found["periods"]} == {"blue", f"{SECRET}-team"}


async def test_periods_of_other_namespaces_have_no_names(http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/nodes/a/occupancy", params=SPAN, headers=as_caller("mine"))
    periods = answer.json()["data"]["periods"]
    assert SECRET not in answer.text
    assert sorted(each["podName"] for each in periods) == ["", "", "mine-0", "mine-half"]
    assert sorted(gpu for each in periods for gpu in each["gpus"]) == [0, 1, 2, 3, 4, 4]


async def test_a_range_that_no_period_overlaps_is_empty(http: httpx.AsyncClient) -> None:
    before = {"start": HOUR - 9000, "end": HOUR - 8000}
    found = (await http.get("/api/nodes/a/occupancy", params=before)).json()["data"]
    assert found["periods"] == []


async def test_wrong_ranges_and_nodes_are_refused(http: httpx.AsyncClient) -> None:
    for span in ({"start": 10, "end": 10}, {"start": 0, "end": 93 * 86_400}):
        answer = await http.get("/api/nodes/a/occupancy", params=span)
        assert (answer.status_code, "at most 92 days" in answer.text) == (400, True)
    assert (await http.get("/api/nodes/none/occupancy", params=SPAN)).status_code == 404
