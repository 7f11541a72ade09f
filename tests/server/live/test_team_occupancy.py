"""The GPUs that teams held over time."""

import httpx
import pytest

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.model.periods import AllocationPeriod
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.live.team_occupancy import HeldPart, held_parts, team_occupancy_routes
from gpufleet.store import Store

NOW = 1_800_000_000.0


def period(pod: str, start: float, end: float, **more: object) -> AllocationPeriod:
    facts: dict[str, object] = {
        "namespace": "ml",
        "node": "n",
        "workload_uid": "job",
        "workload_kind": "Job",
        "workload_name": "bert",
        "source": "k8s",
        "gpus": 4,
        "share": 1.0,
        "model": "H200",
        "held": (),
        "labels": {},
        "annotations": {},
    }
    return AllocationPeriod(pod_uid=pod, pod=pod, start=start, end=end, **{**facts, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("periods", "parts"),
    [
        ([(0, 10)], [(0, 10, 4)]),
        ([(0, 10), (0, 10)], [(0, 10, 8)]),
        ([(0, 10), (5, 20)], [(0, 5, 4), (5, 10, 8), (10, 20, 4)]),
        ([(0, 10), (30, 0)], [(0, 10, 4), (30, 0, 4)]),
    ],
)
def test_the_pods_of_a_workload_are_added_up(
    periods: list[tuple[float, float]], parts: list[tuple[float, float, float]]
) -> None:
    found = held_parts([period(f"p{number}", *each) for number, each in enumerate(periods)])
    assert found == [HeldPart(*part) for part in parts]


async def test_teams_are_ordered_by_their_gpu_hours_in_the_range(cluster: Cluster, store: Store) -> None:
    await store.accounted.open("prod", NOW - 100_000)
    await store.allocation_periods.save(
        "prod",
        [
            period("a", NOW - 7200, NOW - 3600),
            period("b", NOW - 3600, 0.0, workload_uid="job2", labels={"team": "vision"}, gpus=8),
            period("d", NOW - 20_000, 0.0, workload_uid="job3", labels={"team": "audio"}),
            period("e", NOW - 5000, 0.0, workload_uid="job3", labels={"team": "audio"}),
            period("c", NOW - 90_000, NOW - 80_000, workload_uid="old", workload_name="old"),
        ],
    )
    routes = team_occupancy_routes(Clusters([cluster]), store.allocation_periods)
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.get(f"/api/occupancy?start={NOW - 7200}&end={NOW}")
        teams = answer.json()["data"]["teams"]
        assert [(each["team"], each["gpuHours"]) for each in teams] == [
            ("audio", round(8 + 4 * 5000 / 3600, 4)),
            ("vision", 8.0),
            ("ml", 4.0),
        ]
        (bert,) = teams[2]["workloads"]
        assert (bert["uid"], bert["parts"]) == (
            "job",
            [{"start": NOW - 7200, "end": NOW - 3600, "gpus": 4.0}],
        )
        one = await http.get(f"/api/occupancy?start={NOW - 7200}&end={NOW}&team=ml")
        assert [each["team"] for each in one.json()["data"]["teams"]] == ["ml"]
        late = await http.get(f"/api/occupancy?start={NOW - 600}&end={NOW}&team=audio")
        (speech,) = late.json()["data"]["teams"][0]["workloads"]
        assert [(part["start"], part["gpus"]) for part in speech["parts"]] == [(NOW - 5000, 8.0)]
        wrong = await http.get(f"/api/occupancy?start={NOW}&end={NOW - 1}")
        assert wrong.status_code == 400
