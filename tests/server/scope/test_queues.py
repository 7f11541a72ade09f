"""GpuQueues in the API, for administrators and for callers who are limited to a namespace."""

import httpx
from tests.server.scope.conftest import SECRET, as_caller


async def test_an_administrator_gets_all_queues_with_their_conditions(http: httpx.AsyncClient) -> None:
    answer = (await http.get("/api/queues", headers=as_caller("all"))).json()
    assert (answer["code"], answer["message"]) == (0, "success")
    rows = {row["name"]: row for row in answer["data"]["data"]}
    assert sorted(rows) == sorted(["both", "mine-queue", f"{SECRET}-queue"])
    assert rows["both"]["namespaces"] == ["mine", SECRET]
    assert SECRET in rows["both"]["conditions"][0]["message"]


async def test_a_limited_caller_gets_the_queues_of_its_namespaces_only(http: httpx.AsyncClient) -> None:
    answer = (await http.get("/api/queues", headers=as_caller("mine"))).json()
    rows = {row["name"]: row for row in answer["data"]["data"]}
    assert sorted(rows) == ["both", "mine-queue"]
    assert rows["both"]["namespaces"] == ["mine"]
    assert rows["both"]["conditions"][0]["message"] == ""
