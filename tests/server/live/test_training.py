"""Report and read training numbers, over a real store."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.live.conftest import NOW, TOKENS

from gpufleet.errors import SettingsError
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.kubernetes.token_review import TokenOwner
from gpufleet.model.training_point import TrainingPoint
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.runtime.settings import TrainingSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.permissions import Permission
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile, new_token
from gpufleet.server.auth.workload_tokens import WorkloadTokens, read_key
from gpufleet.server.routes.live.training import MAX_ROWS, training_routes
from gpufleet.server.routes.live.workload_metrics import workload_metric_routes
from gpufleet.store import Store
from gpufleet.store.training import MAX_METRICS

AT = int(NOW * 1000)


def row(metric: str = "loss", value: object = 1.5, at: int = AT, **more: object) -> dict[str, object]:
    return {"metric": metric, "value": value, "timestamp": at, **more}


async def reported(http: httpx.AsyncClient, uid: str = "job", **more: int) -> list[dict[str, Any]]:
    span = {"start": AT - 3_600_000, "end": AT, **more}
    answer = await http.get(f"/api/workloads/{uid}/trainingPerformance", params=span)
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


async def test_a_batch_is_stored_when_answered_and_sending_it_again_changes_nothing(
    http: httpx.AsyncClient,
) -> None:
    batch = [row(), row(at=AT - 1000, value=2.5), row(rank=1, value=3.5), row("grad_norm", 0.25)]
    for _ in range(2):
        answer = await http.post("/api/workloads/job/trainingPerformance", json=batch)
        assert answer.json()["data"] == {"uid": "job", "stored": 4}
        assert sorted((r["metric"], r["timestamp"] - AT, r["value"]) for r in await reported(http)) == [
            ("grad_norm", 0, 0.25),
            ("loss", -1000, 2.5),
            ("loss", 0, 1.5),
        ]
        assert await reported(http, rank=1) == [row(value=3.5)]
    await http.post("/api/workloads/job/trainingPerformance", json=[row(value=9.0, rank=1)])
    assert await reported(http, rank=1) == [row(value=9.0)]
    assert [r["value"] for r in await reported(http) if r["timestamp"] == AT] == [0.25, 1.5]


async def test_many_ranks_are_one_line(http: httpx.AsyncClient) -> None:
    batch = [
        row(value=float(rank), at=AT - 100 * rank - 60_000 * step, rank=rank)
        for rank in (2, 1)
        for step in (2, 1, 0)
    ]
    await http.post("/api/workloads/job/trainingPerformance", json=batch)
    assert [r["value"] for r in await reported(http)] == [1.0, 1.0, 1.0]
    assert [r["value"] for r in await reported(http, rank=2)] == [2.0, 2.0, 2.0]
    answer = await http.get(f"/api/workloads/job/trainingPerformance?start=0&end={AT}&rank=-1")
    assert (answer.status_code, "rank" in answer.json()["message"]) == (400, True)


@pytest.mark.parametrize("name", ["uid-bert-0", "uid-bert-1"])
async def test_a_pod_reports_for_its_top_level_owner(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.post(f"/api/workloads/{name}/trainingPerformance", json=[row()])
    assert answer.json()["data"] == {"uid": "job", "stored": 1}
    assert len(await reported(http)) == 1


async def test_a_slurm_job_reports_by_its_number(http: httpx.AsyncClient, cluster: Cluster) -> None:
    owner = OwnerRef("c-42", "SlurmJob", "train")
    cluster.fleet.put_owner(FleetOwner(uid="c-42", kind="SlurmJob", name="train", source="slurm"))
    cluster.fleet.put_pod(
        FleetPod(
            uid="c-42-0",
            name="train-0",
            node="idle",
            source="slurm",
            alias="42",
            gpus=1,
            owner=owner,
            phase=Status.RUNNING,
        )
    )
    answer = await http.post("/api/workloads/slurm:42/trainingPerformance", json=[row()])
    assert answer.json()["data"]["uid"] == "c-42"
    assert (await http.post("/api/workloads/slurm:43/trainingPerformance", json=[row()])).status_code == 404


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ([], "length >= 1"),
        ([row()] * (MAX_ROWS + 1), f"length <= {MAX_ROWS}"),
        ([row("x" * 200)], "matching regex"),
        ([row("")], "matching regex"),
        ([row("a\x00b")], "matching regex"),
        ([row("'; DROP TABLE training_point; --")], "matching regex"),
        ([row(value="1")], "Expected `float`"),
        ([row(value=None)], "Expected `float`"),
        ([row(at=-1)], ">= 0"),
        ([row(at=AT + 2 * 86_400_000)], "in the future"),
        ([row(rank=-1)], ">= 0"),
        ([row(rank=2**40)], "<= 1000000"),
        ([{"metric": "loss"}], "missing required field"),
        ({"metric": "loss"}, "Expected `array`"),
    ],
)
async def test_an_invalid_row_rejects_the_whole_batch(
    http: httpx.AsyncClient, body: object, part: str
) -> None:
    answer = await http.post("/api/workloads/job/trainingPerformance", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, 400)
    assert part in answer.json()["message"]
    assert await reported(http) == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
async def test_numbers_are_finite(http: httpx.AsyncClient, number: str) -> None:
    body = f'[{{"metric":"loss","value":{number},"timestamp":{AT}}}]'
    answer = await http.post(
        "/api/workloads/job/trainingPerformance",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400
    assert await reported(http) == []


async def test_a_workload_has_a_bounded_number_of_metrics(http: httpx.AsyncClient) -> None:
    path = "/api/workloads/job/trainingPerformance"
    full = [row(f"m{number}") for number in range(MAX_METRICS)]
    assert (await http.post(path, json=full)).status_code == 200
    answer = await http.post(path, json=[row("one_more")])
    assert answer.status_code == 400
    assert f"at most {MAX_METRICS} are kept" in answer.json()["message"]
    assert (await http.post(path, json=[row("m0", at=AT - 1)])).status_code == 200
    assert len(await reported(http)) == MAX_METRICS + 1


@pytest.fixture
async def limited(cluster: Cluster, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """The API with the smallest limits."""
    limits = TrainingSettings(max_points=25_000)
    rates = {"points_per_minute": 20_000, "caller_points_per_minute": 30_000}
    routes = training_routes(Clusters([cluster]), store.training, TOKENS, limits, lambda: NOW, **rates)
    transport = httpx.ASGITransport(create_app(Api(routes=routes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def many(number: int, first: int = 0) -> list[dict[str, object]]:
    return [row(at=AT - first - step) for step in range(number)]


async def test_a_workload_reports_a_bounded_number_of_points_per_minute(limited: httpx.AsyncClient) -> None:
    path = "/api/workloads/job/trainingPerformance"
    for part in range(2):
        assert (await limited.post(path, json=many(10_000, part * 10_000))).status_code == 200
    answer = await limited.post(path, json=many(10_000, 20_000))
    assert (answer.status_code, answer.json()["code"]) == (429, 429)
    assert "of one workload (20,000)" in answer.json()["message"]
    assert 0 < int(answer.headers["retry-after"]) <= 30
    other = await limited.post("/api/workloads/dep/trainingPerformance", json=many(5_000))
    assert other.status_code == 200


async def test_a_caller_reports_a_bounded_number_of_points_per_minute(limited: httpx.AsyncClient) -> None:
    for uid in ("job", "dep", "uid-bare"):
        path = f"/api/workloads/{uid}/trainingPerformance"
        assert (await limited.post(path, json=many(10_000))).status_code == 200
    answer = await limited.post("/api/workloads/uid-done/trainingPerformance", json=many(10_000))
    assert answer.status_code == 429
    assert "of one caller (30,000)" in answer.json()["message"]


async def test_a_workload_has_a_bounded_number_of_points(limited: httpx.AsyncClient, store: Store) -> None:
    points = [TrainingPoint("loss", 1.0, float(step)) for step in range(20_000)]
    await store.training.append("prod", "job", points)
    path = "/api/workloads/job/trainingPerformance"
    assert (await limited.post(path, json=many(5_000))).status_code == 200
    answer = await limited.post(path, json=many(1, 5_000))
    assert (answer.status_code, answer.json()["code"]) == (413, 413)
    assert "training.max_points" in answer.json()["message"]
    assert await store.database.fetchval("SELECT count(*) FROM training_point") == 25_000


async def test_the_graph_shows_tflops_and_model_flops_utilization(http: httpx.AsyncClient) -> None:
    batch = [
        row("parameters", 1e9, AT - 200_000),
        row("tokens_per_second", 60_000, AT - 120_000),
        row("tflops", 100.0, AT - 60_000, rank=0),
        row("tflops", 200.0, AT - 50_000, rank=1),
    ]
    await http.post("/api/workloads/job/trainingPerformance", json=batch)
    start = int(NOW) - 180
    answer = await http.get(f"/api/workloads/job/metrics?start={start}&end={int(NOW)}&step=60")
    graph = answer.json()["data"]["TrainingPerformance"]
    assert graph["config"] == {"yAxisUnit": "TFLOPS"}
    lines = {line["name"]: line["points"] for line in graph["series"]}
    assert lines["TFLOPS"] == [[60.0, AT - 120_000], [150.0, AT - 60_000]]  # 6 · 1e9 · 60,000 / 6 GPUs
    peak = (4 * 1307.4 + 2 * 989.4) / 6
    assert lines.keys() == {"TFLOPS"}
    graph = answer.json()["data"]["MFU"]
    assert graph["config"] == {"yAxisUnit": "%"}
    assert [value for value, _ in graph["series"][0]["points"]] == pytest.approx(
        [60 / peak, 150 / peak], abs=1e-6
    )


class Kubernetes:
    """Knows the tokens `pod:UID`."""

    async def review(self, token: str) -> TokenOwner | None:
        pod_uid = token.removeprefix("pod:")
        if pod_uid == token:
            return None
        return TokenOwner("system:serviceaccount:ml:trainer", pod_uid=pod_uid)


class NoPermissions:
    async def of(self, _owner: TokenOwner) -> Permission | None:
        return None

    async def is_operator(self, _owner: TokenOwner) -> bool:
        return False

    def advice(self, _owner: TokenOwner) -> str:
        return "it has no permission"


@pytest.fixture
async def guarded(cluster: Cluster, store: Store, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The API with login; the client sends the operator's token."""
    operator, line = new_token("ci", "operator")
    (tmp_path / "tokens").write_text(line)
    gate = BearerGate(
        TokenFile(tmp_path / "tokens"), ReviewedTokens(Kubernetes(), NoPermissions(), 60.0), workloads=TOKENS
    )
    clusters = Clusters([cluster])
    routes = [
        *training_routes(clusters, store.training, TOKENS, clock=lambda: NOW),
        *workload_metric_routes(clusters, store.allocation_periods),
    ]
    transport = httpx.ASGITransport(create_app(Api(routes=routes, gate=gate)))
    headers = {"authorization": f"Bearer {operator}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


async def test_a_workload_token_only_reports_for_its_workload(guarded: httpx.AsyncClient) -> None:
    made = (await guarded.post("/api/workloads/uid-bert-0/reportToken")).json()["data"]
    assert made["uid"] == "job"
    own = {"authorization": f"Bearer {made['token']}"}
    path = "/api/workloads/{}/trainingPerformance"
    assert (await guarded.post(path.format("job"), json=[row()], headers=own)).status_code == 200
    assert (await guarded.post(path.format("uid-bert-1"), json=[row()], headers=own)).status_code == 200
    assert (await guarded.post(path.format("dep"), json=[row()], headers=own)).status_code == 403
    assert (await guarded.get(path.format("job") + "?start=0&end=1", headers=own)).status_code == 401
    assert (await guarded.post("/api/workloads/job/reportToken", headers=own)).status_code == 401
    forged = {"authorization": f"Bearer {made['token'][:-2]}AA"}
    assert (await guarded.post(path.format("job"), json=[row()], headers=forged)).status_code == 401


async def test_a_pod_reports_with_its_own_service_account_for_its_own_workload(
    guarded: httpx.AsyncClient,
) -> None:
    pod = {"authorization": "Bearer pod:uid-bert-0"}
    path = "/api/workloads/{}/trainingPerformance"
    assert (await guarded.post(path.format("job"), json=[row()], headers=pod)).status_code == 200
    assert (await guarded.post(path.format("dep"), json=[row()], headers=pod)).status_code == 403
    assert (await guarded.post("/api/workloads/job/reportToken", headers=pod)).status_code == 403
    person = {"authorization": "Bearer pod:"}
    assert (await guarded.post(path.format("job"), json=[row()], headers=person)).status_code == 403


def test_replacing_the_key_revokes_all_tokens(tmp_path: Path) -> None:
    key = read_key(tmp_path / "data" / "key", make=True)
    assert read_key(tmp_path / "data" / "key", make=True) == key
    assert (tmp_path / "data" / "key").stat().st_mode & 0o777 == 0o600
    token = WorkloadTokens(key).issue("job")
    known = WorkloadTokens(key).caller(token)
    assert known is not None
    assert (known.workload_uid, known.role) == ("job", "viewer")
    assert WorkloadTokens(b"x" * 32).caller(token) is None
    for wrong in ("", "gpw_", "gpw_.", "gpw_a.b", "gpw_" + "A" * 4000, "gpw_é.é", token[4:]):
        assert WorkloadTokens(key).caller(wrong) is None
    (tmp_path / "short").write_text("secret")
    with pytest.raises(SettingsError, match="at least 32"):
        read_key(tmp_path / "short", make=False)


async def test_a_pod_that_forges_its_owner_reports_for_itself_only(
    guarded: httpx.AsyncClient, cluster: Cluster
) -> None:
    cluster.fleet.put_pod(
        FleetPod(
            uid="forged",
            name="forged",
            namespace="vision",
            node="idle",
            gpus=1,
            owner=OwnerRef("job", "PyTorchJob", "bert"),
            phase=Status.RUNNING,
        )
    )
    pod = {"authorization": "Bearer pod:forged"}
    path = "/api/workloads/{}/trainingPerformance"
    assert (await guarded.post(path.format("job"), json=[row()], headers=pod)).status_code == 403
    own = await guarded.post(path.format("forged"), json=[row()], headers=pod)
    assert own.json()["data"] == {"uid": "job@vision", "stored": 1}
