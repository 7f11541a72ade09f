"""The demo as a user starts it: a separate process, stopped with Ctrl-C, started again."""

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from tests import agreement
from tests.waiting import block_until, wait_until

from gpufleet.cli import main
from gpufleet.cli.demo import demo_settings
from gpufleet.kubernetes import KubeClient, load_connection
from gpufleet.runtime.settings import (
    KubernetesSettings,
    MetricsSettings,
    StoreSettings,
    WebhookSettings,
    load_settings,
)

pytestmark = pytest.mark.long


def command(data: Path, *flags: str) -> list[str]:
    small = ("--nodes", "16", "--gpus", "4", "--days", "0.1")
    return [sys.executable, "-m", "gpufleet", "demo", "--data", str(data), "--port", "0", *small, *flags]


@contextmanager
def playing(data: Path, *flags: str) -> Iterator[tuple[str, "subprocess.Popen[str]", str]]:
    """A running demo: its address, its process, and what it printed."""
    outside = {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
        "PROMETHEUS_URL": "http://127.0.0.1:1",
        "KUBECONFIG": "/nowhere",
    }
    process = subprocess.Popen(
        command(data, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=data,
        env={**os.environ, **outside},
    )
    assert process.stdout is not None
    try:
        printed = ""
        for line in process.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        match = re.search(r"http://127\.0\.0\.1:\d+", printed)
        assert match, (printed, process.communicate())
        yield match[0], process, printed
    finally:
        if process.poll() is None:
            process.terminate()
        _, log = process.communicate(timeout=60)
    assert "Traceback" not in log, log
    assert '"level":"error"' not in log, log


def test_it_starts_prints_what_to_try_stops_on_ctrl_c_and_restarts(empty_data: Path) -> None:
    with playing(empty_data) as (address, process, printed):
        health = httpx.get(f"{address}/api/healthz").json()["data"]
        assert health["simulated"] is True
        assert health["status"] == "healthy"
        assert health["dependencies"]["kubernetes"]["message"].startswith("14 nodes, ")
        latest = httpx.get(f"{address}/api/v1/gpu-aggregation/snapshots/latest")
        assert latest.status_code == 200, "a snapshot exists from the start"
        assert "==> simulating 16 nodes" in printed
        assert f"Dashboard          {address}/\n" in printed
        assert httpx.get(f"{address}/").headers["content-type"].startswith("text/html")
        assert f"curl '{address}/api/clusters/overview'" in printed
        overview = httpx.get(f"{address}/api/clusters/overview").json()["data"]
        assert (overview["totalNodes"], overview["totalGpus"]) == (16, 64)
        match = re.search(r"KUBECONFIG=(\S+) kubectl get gns", printed)
        assert match
        assert asyncio.run(_count(empty_data / match[1], "/api/v1/nodes")) == 14
        assert asyncio.run(_count(empty_data / match[1], "/apis/gpu.scheduling/v1/gpunodestatuses")) == 14
        with subprocess.Popen(
            command(empty_data, "--fresh"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as second:
            _, refusal = second.communicate(timeout=60)
        assert second.returncode == 1
        assert "a demo is running on" in refusal
        assert "2 hours of readings" in printed
        folder = empty_data / "demo" / "16x4-seed1"
        block_until((folder / "demo.json").exists, 60)  # the past is complete
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not (folder / "postgres" / "postmaster.pid").exists(), "PostgreSQL was left running"
    with playing(empty_data) as (address, _, printed):
        assert httpx.get(f"{address}/api/healthz").json()["data"]["status"] == "healthy"
        assert "2 hours of readings" not in printed, "the past was there already"


async def _count(kubeconfig: Path, path: str) -> int:
    async with KubeClient(load_connection(str(kubeconfig))) as client:
        return len((await client.read_json(path))["items"])


class Shared(NamedTuple):
    """A demo that several tests look at."""

    address: str
    process: "subprocess.Popen[str]"
    printed: str
    data: Path


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with tempfile.TemporaryDirectory(prefix="gpufleet-data-") as name:
        data = Path(name)
        data.chmod(0o711)  # PostgreSQL's user must reach the database in it
        with playing(data) as started:
            yield Shared(*started, data)


def _workloads_hold_what_nodes_show(address: str, source: str) -> bool:
    nodes = httpx.get(f"{address}/api/nodes?pageSize=100").json()["data"]["data"]
    workloads = httpx.get(f"{address}/api/workloads?pageSize=1000").json()["data"]["data"]
    running = [row for row in workloads if row["source"] == source and row["status"] == "Running"]
    shown = sum(node["gpuAllocated"] for node in nodes if node["source"] == source)
    return bool(running) and shown == sum(row["gpuAllocated"] for row in running)


def test_slurm_jobs_and_containers_are_followed_like_any_others(shared: Shared) -> None:
    address = shared.address
    dependencies = httpx.get(f"{address}/api/healthz").json()["data"]["dependencies"]
    assert dependencies["slurm"]["message"].startswith("1 nodes, ")
    assert dependencies["docker"]["message"].endswith("GPU containers on l40s-001")
    nodes = httpx.get(f"{address}/api/nodes?pageSize=100").json()["data"]["data"]
    assert {node["name"]: node["source"] for node in nodes if node["source"] != "k8s"} == {
        "a100-001": "slurm",
        "l40s-001": "docker",
    }
    for source in ("slurm", "docker"):
        mine = [node for node in nodes if node["source"] == source]
        assert any(node["utilization"] is not None for node in mine), "no readings of its GPUs"

        # A job may start or end between the two readings.
        block_until(partial(_workloads_hold_what_nodes_show, address, source), 60)
    query = "start_time=2020-01-01T00:00:00Z&end_time=2100-01-01T00:00:00Z&page_size=1000"
    path = f"{address}/api/v1/gpu-aggregation/workloads/hourly-stats?{query}"

    def are_measured() -> bool:
        """Return whether all hours in which a workload held GPUs long enough have readings and a cost.

        An hour that was computed before the model of its GPUs was known is computed again.
        """
        rows: list[dict[str, Any]] = httpx.get(path).json()["data"]["data"]
        found = [row for row in rows if row["allocated_gpu_hours"] > 0.3 * row["requested_gpu_count"] > 0]
        measured = all(row["avg_utilization"] is not None and row["cost"] > 0 for row in found)
        return measured and {"k8s", "slurm", "docker"} <= {row["source"] for row in found}

    block_until(are_measured, 60)


async def test_a_users_claim_is_allocated_and_the_scheduler_repairs_nothing(shared: Shared) -> None:
    address = shared.address
    folder = shared.data / "demo" / "16x4-seed1"
    assert f"kubectl apply -f {folder.relative_to(shared.data)}/trial.yaml" in shared.printed
    claim, pod = yaml.safe_load_all((folder / "trial.yaml").read_text())
    async with KubeClient(load_connection(str(folder / "kubeconfig"))) as client:
        claims = "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims"
        pods = "/api/v1/namespaces/default/pods"
        await client.write_json("POST", claims, claim)
        created = await client.write_json("POST", pods, pod)
        assert created["spec"]["schedulerName"] == "gpu-scheduler", "the webhook was not called"
        variables = {entry["name"] for entry in created["spec"]["containers"][0]["env"]}
        assert "CUDA_VISIBLE_DEVICES" in variables
        found = await _until(client, f"{pods}/trial", lambda it: it["status"].get("phase") == "Running")
        bound = await _until(client, f"{claims}/trial", lambda it: it["status"]["phase"] == "Bound")
        allocated = found["metadata"]["annotations"]["gpu.scheduling/allocated"]
        assert allocated == bound["status"]["allocated"]
        api = httpx.AsyncClient(base_url=address)
        rows = (await api.get("/api/leases?pageSize=1000")).json()["data"]["data"]
        assert rows
        assert not any(row["foreign"] for row in rows)
        mine = [row for row in rows if row["holders"][0]["podName"] == "trial"]
        node, _, ids = allocated.rpartition(":")
        assert {(row["node"], row["gpu"]) for row in mine} == {(node, int(gpu)) for gpu in ids.split(",")}
        (workload,) = (await api.get("/api/workloads?name=trial")).json()["data"]["data"]
        await api.aclose()
        assert (workload["gpuAllocated"], workload["status"]) == (2, "Running")
        assert await _written_by_scheduler(client) == {"trial", *(row["name"] for row in mine)}
        await client.write_json("DELETE", f"{pods}/trial", {})
        await _until(client, f"{claims}/trial", lambda it: it["status"]["phase"] == "Pending")


async def _written_by_scheduler(client: KubeClient) -> set[str]:
    """The claims, and the leases of GPUs, that the scheduler has written."""
    found = set()
    for path in ("/apis/gpu.scheduling/v1/gpuclaims", "/apis/coordination.k8s.io/v1/leases"):
        for item in (await client.read_json(path))["items"]:
            meta = item["metadata"]
            managers = {entry["manager"] for entry in meta.get("managedFields", ())}
            if "gpufleet-scheduler" in managers and meta["name"] != "gpufleet-scheduler":
                found.add(meta["name"])
    return found


async def _until(client: KubeClient, path: str, true: Callable[[Any], bool]) -> Any:
    async def read() -> Any:
        found = await client.read_json(path)
        return found if true(found) else None

    return await wait_until(read, 60)


def _data(url: str) -> Any:
    return httpx.get(url).json()["data"]


def test_the_demo_passes_the_agreement_test_of_a_real_cluster(shared: Shared) -> None:
    site = agreement.Site(shared.address, {}, "demo")
    overview = agreement.check_live(site)
    assert overview["idleGpus"] > 0
    path = f"{shared.address}/api/v1/gpu-aggregation/cluster/hourly-stats"
    span = "start_time=2020-01-01T00:00:00Z&end_time=2100-01-01T00:00:00Z"
    hours = block_until(partial(_data, f"{path}?{span}"), 60)
    for day in sorted({hour["stat_hour"][:10] for hour in hours}):
        totals = agreement.check_accounts(site, day)
        assert totals["energy_kwh"] > 0
        assert totals["cost"] > 0


def test_leases_claims_map_and_snapshot_of_one_instant_agree(shared: Shared) -> None:
    """Read all views until two readings of the overview are equal: the simulation moves every 15 seconds."""
    api = httpx.Client(base_url=shared.address)

    def rows(path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = api.get(path).json()["data"]["data"]
        return found

    for _ in range(20):
        before = api.get("/api/clusters/overview").json()["data"]
        consumers = rows("/api/clusters/consumers?pageSize=1000")
        nodes = rows("/api/nodes?pageSize=1000")
        leases = rows("/api/leases?pageSize=1000")
        claims = rows("/api/claims?pageSize=1000")
        workloads = rows("/api/workloads?pageSize=1000&status=Running")
        gpu_map = api.get("/api/v1/gpu/map").json()["data"]
        snapshot = api.get("/api/v1/gpu-aggregation/snapshots/latest").json()["data"]
        if api.get("/api/clusters/overview").json()["data"] == before:
            break
    else:
        raise AssertionError("the overview changed with every reading")
    shared_gpus = sum(len(lease["holders"]) - 1 for lease in leases)
    assert shared_gpus > 0, "no GPU in MIG mode has several holders"
    held = before["allocatedGpus"]
    assert before["totalGpus"] == sum(node["gpuTotal"] for node in nodes) == snapshot["total_gpu_capacity"]
    assert held == sum(node["gpuAllocated"] for node in nodes)
    assert held == sum(row["stat"]["gpuRequest"] for row in consumers) - shared_gpus
    assert held == sum(row["gpuAllocated"] for row in workloads) - shared_gpus
    refs = [
        (node, gpu_map["indexes"][gpu])
        for node, first, count in zip(
            gpu_map["nodes"],
            itertools.accumulate(gpu_map["counts"], initial=0),
            gpu_map["counts"],
            strict=False,
        )
        for gpu in range(first, first + count)
    ]
    marks = dict(zip(refs, gpu_map["marks"], strict=True))
    faulty = {node["name"] for node in nodes if node["fault"]}
    cordoned = {node["name"] for node in nodes if node["cordoned"]}
    drawn = sum(mark in "hp" for mark in marks.values())
    hidden = sum(node["gpuAllocated"] for node in nodes if node["name"] in faulty | cordoned)
    assert held - hidden <= drawn <= held
    assert all(marks[ref] == "x" for ref in marks if ref[0] in faulty)
    assert not any(node["gpuAllocated"] for node in nodes if node["name"] in faulty)
    leased = {
        (holder["podUid"], lease["node"], lease["gpu"]) for lease in leases for holder in lease["holders"]
    }
    bound = {
        (allocation["podUid"], allocation["nodeName"], gpu)
        for claim in claims
        for allocation in claim["allocations"]
        for gpu in allocation["gpuIds"]
    }
    assert leased == bound
    assert all(marks[node, gpu] in "hc" for _, node, gpu in leased)
    namespaces = snapshot["allocation_details"]["namespaces"].values()
    assert sum(each["allocated_gpu"] for each in namespaces) == pytest.approx(snapshot["allocated_gpu_count"])


def test_the_hour_before_has_what_ran_all_the_time(shared: Shared) -> None:
    api = httpx.Client(base_url=shared.address)
    hour = time.time() // 3600 * 3600 - 3600
    span = "&".join(
        f"{name}={time.strftime('%Y-%m-%dT%H:00:00Z', time.gmtime(at))}"
        for name, at in (("start_time", hour), ("end_time", hour + 3600))
    )
    path = f"/api/v1/gpu-aggregation/workloads/hourly-stats?{span}&page_size=1000"
    deadline = time.monotonic() + 60
    while not (hours := api.get(path).json()["data"]["data"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    accounted = {row["owner_uid"]: row for row in hours}
    leases = api.get("/api/leases?pageSize=1000").json()["data"]["data"]
    instances = {holder["podName"] for lease in leases for holder in lease["holders"] if holder["instances"]}
    running = [
        row
        for row in api.get("/api/workloads?pageSize=1000&status=Running").json()["data"]["data"]
        if row["startAt"] < hour
        and row["kind"] not in ("Deployment", "StatefulSet", "CronJob")
        and not any(name.startswith(row["name"]) for name in instances)
    ]
    assert len(running) > 3
    for row in running:
        assert accounted[row["uid"]]["allocated_gpu_hours"] == row["gpuAllocated"]
        assert accounted[row["uid"]]["avg_gpu_memory_used"] > 0


def test_snapshots_go_back_as_far_as_hours(shared: Shared) -> None:
    api = httpx.Client(base_url=shared.address)
    span = "start_time=2020-01-01T00:00:00Z&end_time=2100-01-01T00:00:00Z"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        hours = api.get(f"/api/v1/gpu-aggregation/cluster/hourly-stats?{span}").json()["data"]
        snapshots = api.get(f"/api/v1/gpu-aggregation/snapshots?{span}").json()["data"]
        first = datetime.fromisoformat(min(row["snapshot_time"] for row in snapshots))
        if hours and first - datetime.fromisoformat(hours[0]["stat_hour"]) < timedelta(hours=1):
            break
        time.sleep(0.2)
    first = datetime.fromisoformat(min(row["snapshot_time"] for row in snapshots))
    assert first - datetime.fromisoformat(hours[0]["stat_hour"]) < timedelta(hours=1)


def test_ended_slurm_jobs_keep_their_graphs(empty_data: Path) -> None:
    with playing(empty_data, "--days", "1") as (address, _, _):
        ended: list[dict[str, Any]] = []
        deadline = time.monotonic() + 60
        while len(ended) < 4 and time.monotonic() < deadline:  # the second refresh reads the history
            page = httpx.get(f"{address}/api/workloads?pageSize=1000&source=slurm").json()["data"]["data"]
            # What lasted for moments only may have fallen between two readings.
            recent = [row for row in page if row["startAt"] > time.time() - 80_000]
            ended = [row for row in recent if row["endAt"] - row["startAt"] > 600]
            time.sleep(0.2)
        assert len(ended) > 3
        for row in ended:
            span = {"start": row["startAt"], "end": row["endAt"], "step": 60}
            answer = httpx.get(f"{address}/api/workloads/{row['uid']}/metrics", params=span)
            series = answer.json()["data"]["GPU Utilization"]["series"]
            assert len(series) == row["gpuAllocated"], row
            assert all(line["points"] for line in series), row


def test_its_history_is_in_the_accounting(shared: Shared) -> None:
    address = shared.address
    query = "start_time=2020-01-01T00:00:00Z&end_time=2100-01-01T00:00:00Z"
    for kind, more in (("cluster", ""), ("labels", "&dimension_type=label&dimension_key=team")):
        path = f"{address}/api/v1/gpu-aggregation/{kind}/hourly-stats?{query}{more}"
        rows = block_until(partial(_data, path), 60)
        assert all(row["allocated_gpu_hours"] > 0 and row["cost"] > 0 for row in rows)
    path = f"{address}/api/v1/gpu-aggregation/workloads/hourly-stats?{query}&order_direction=desc"
    measured = [row for row in httpx.get(path).json()["data"]["data"] if row["sample_count"]]
    assert measured
    assert all(0 < row["avg_gpu_memory_used"] <= row["avg_gpu_memory_total"] for row in measured)


def test_two_signals_end_it_without_a_traceback(shared: Shared) -> None:
    """The last that looks at it; what it logged is looked at when it is gone."""
    with httpx.stream("GET", f"{shared.address}/api/events") as events:
        next(events.iter_text())
        shared.process.terminate()
        shared.process.send_signal(signal.SIGINT)
        assert shared.process.wait(60) == 0


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_during_the_start_leaves_nothing_behind(empty_data: Path, times: int) -> None:
    process = subprocess.Popen(
        command(empty_data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=empty_data
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "starting PostgreSQL" in line:
            break
    postmaster = empty_data / "demo" / "16x4-seed1" / "postgres" / "postmaster.pid"
    block_until(postmaster.exists)  # a PostgreSQL runs that has to be stopped
    process.send_signal(signal.SIGINT)
    if times == 2:
        process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log
    assert not postmaster.exists()


def test_it_uses_no_other_database_or_cluster(tmp_path: Path) -> None:
    file = tmp_path / "gpufleet.toml"
    file.write_text('[clusters.prod.kubernetes]\nkubeconfig = "/prod"\n')
    environment = {
        "DATABASE_URL": "postgresql://prod",
        "PROMETHEUS_URL": "http://prod",
        "KUBECONFIG": "/prod",
        "GPUFLEET_WEBHOOK_DEVICE_REQUESTS": "warn",
        "GPUFLEET_WEBHOOK_NAMESPACE": "prod",
    }
    settings = demo_settings(load_settings({}, environment, file))
    assert settings[WebhookSettings] == WebhookSettings(device_requests="warn")
    assert list(settings.clusters) == ["demo"]
    for each in (settings, settings.clusters["demo"]):
        assert each[StoreSettings].url == ""
        assert each[MetricsSettings].url == ""
        assert each[KubernetesSettings].kubeconfig == each[StoreSettings].data / "kubeconfig"


@pytest.mark.parametrize("flags", [["--nodes", "0"], ["--nodes", "2001"], ["--gpus", "17"], ["--seed", "x"]])
def test_impossible_sizes_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *flags]) == 2
    assert f"setting demo.{flags[0].lstrip('-')}" in capsys.readouterr().err
