"""Test a training job from its first step to the monthly report."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from e2e.system import Observations, System, Users
from e2e.system.browser import dashboard, missing

NODE_B = {"selector": {"matchLabels": {"kubernetes.io/hostname": "node-b"}}}
HOURS = "/api/v1/gpu-aggregation/workloads/hourly-stats"
SCRIPT = """
from gpufleet.report import Reporter
report = Reporter()
for step, loss in enumerate((2.5, 2.25, 2.0)):
    report.log(step=step, loss=loss)
report.close()
"""


def test_a_training_job_from_its_loss_to_the_monthly_report(
    system: System, users: Users, observations: Observations
) -> None:
    began = datetime.now(UTC)
    system.set_utilization("node-b", dict.fromkeys(range(4), 80))
    users.claim("two", 2, spec=NODE_B)
    uid = users.job("train", "two", team="nlp")
    pod = system.cluster.wait_for("the Job's pod", lambda: next(iter(users.pods()), None))["metadata"]
    users.running(pod["name"])
    observations.add("a Job with two GPUs", users.allocated(pod["name"]))

    report_from_script(system, users, pod)
    write_log(system, users, pod)

    def numbers() -> dict[str, list[float]]:
        span = f"start={_milliseconds(began)}&end={_milliseconds(datetime.now(UTC) + timedelta(minutes=1))}"
        found: dict[str, list[float]] = {}
        for row in system.get(f"/api/workloads/{uid}/trainingPerformance?{span}"):
            found.setdefault(row["metric"], []).append(row["value"])
        return found

    system.cluster.wait_for("numbers from script and log", lambda: {"loss", "grad_norm"} <= numbers().keys())
    assert numbers()["loss"][:3] == [2.5, 2.25, 2.0], "pushed by the script"
    assert set(numbers()["grad_norm"]) == {0.5}, "read from the log by the agent, scraped by Prometheus"
    observations.add("GET …/trainingPerformance", f"loss {numbers()['loss'][:3]}, grad_norm from the log")

    if missing():
        observations.add("the dashboard", f"skipped: this machine lacks {missing()}")
    else:
        with dashboard(system) as page:
            page.goto(f"{system.server.url}/#/workloads/{uid}")
            page.get_by_role("heading", name="Loss").wait_for()
            page.get_by_text("nlp").first.wait_for()
        observations.add("the dashboard, page of the workload", "a graph of the loss, the team's label")

    wait_for_samples(system, users)
    system.nodes.finish(users.namespace, pod["name"])
    command = ("wait", "--for=condition=Complete", "job/train", "--timeout=60s")
    system.cluster.kubectl(*command, namespace=users.namespace)
    held = gpu_hours(users.read(pod["name"]), 2)
    rows = hours(system, users, began, held)
    assert {row["workload_status"] for row in rows} == {"Completed"}
    # An hour that began just before the end has no sample.
    assert {row["avg_utilization"] for row in rows} - {None} == {80.0}
    assert {row["labels"]["team"] for row in rows} == {"nlp"}
    counted = sum(row["allocated_gpu_count"] for row in rows)
    observations.add(
        "GET …/workloads/hourly-stats", f"{counted:.5f} GPU hours at 80 %; by kubectl {held:.5f}"
    )

    check_monthly_report(system, users, began, counted, observations)


def report_from_script(system: System, users: Users, pod: dict[str, Any]) -> None:
    """Run the script with the pod's environment: server address, UID and mounted token."""
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
    body = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    path = f"/api/v1/namespaces/{users.namespace}/serviceaccounts/default/token"
    token = system.cluster.api.create(path, body)["status"]["token"]
    environment = {"GPUFLEET_URL": system.server.url, "POD_UID": pod["uid"], "GPUFLEET_TOKEN": token}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, timeout=60, check=True)


def write_log(system: System, users: Users, pod: dict[str, Any]) -> None:
    """Write a line of Hugging Face's Trainer in the container runtime's log format."""
    folder = system.processes.pod_logs("node-b") / f"{users.namespace}_{pod['name']}_{pod['uid']}" / "main"
    folder.mkdir(parents=True)
    line = "{'loss': 1.75, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1}"
    (folder / "0.log").write_text(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z stdout F {line}\n")


def wait_for_samples(system: System, users: Users) -> None:
    """Wait until two snapshots contain the job, so that its hour has samples."""
    seen: set[str] = set()

    def twice() -> bool:
        latest = httpx.get(
            f"{system.server.url}/api/v1/gpu-aggregation/snapshots/latest", headers=system.login(), timeout=30
        )
        if latest.status_code == 200:
            found = latest.json()["data"]
            if users.namespace in found["allocation_details"]["namespaces"]:
                seen.add(found["snapshot_time"])
        return len(seen) >= 2

    system.cluster.wait_for("two snapshots of the job", twice, timeout=120, period=0.5)


def gpu_hours(pod: dict[str, Any], gpus: int) -> float:
    """Return the GPU hours of a pod from the times in its status."""
    [scheduled] = [each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
    [container] = pod["status"]["containerStatuses"]
    ended = datetime.fromisoformat(container["state"]["terminated"]["finishedAt"])
    return gpus * (ended - datetime.fromisoformat(scheduled["lastTransitionTime"])).total_seconds() / 3600


def hours(system: System, users: Users, began: datetime, held: float) -> list[dict[str, Any]]:
    """Return the hours of the job after they are complete."""
    end = datetime.now(UTC) + timedelta(hours=1)
    span = f"start_time={began:%Y-%m-%dT%H:00:00Z}&end_time={end:%Y-%m-%dT%H:00:00Z}"
    path = f"{HOURS}?namespace={users.namespace}&workload_name=train&{span}"

    def complete() -> list[dict[str, Any]]:
        system.backfill_hours(began)
        rows: list[dict[str, Any]] = system.get(path)["data"]
        ended = rows and all(row["workload_status"] == "Completed" for row in rows)
        return rows if ended else []

    rows: list[dict[str, Any]] = system.cluster.wait_for("hours of the job", complete)
    counted = sum(row["allocated_gpu_count"] for row in rows)
    assert counted == pytest.approx(held, abs=2 * 4 / 3600), json.dumps(rows)
    return rows


def check_monthly_report(
    system: System, users: Users, began: datetime, counted: float, observations: Observations
) -> None:
    path = f"/api/v1/gpu-aggregation/report?period={began:%Y-%m}"
    for group_by in ("namespace", "workload", "label:team"):
        found = system.get(f"{path}&group_by={group_by}")
        totals, rows = found["totals"], found["rows"]
        assert sum(row["gpu_hours"] for row in rows) == pytest.approx(totals["capacity_gpu_hours"], abs=1e-3)
        held = [row["gpu_hours"] for row in rows if row["row"] != "unallocated"]
        assert sum(held) == pytest.approx(totals["allocated_gpu_hours"], abs=1e-3)
        assert sum(row["share"] for row in rows) == pytest.approx(100, abs=0.1)
        if group_by == "namespace":
            [ours] = [row for row in rows if row["name"] == users.namespace]
            assert ours["gpu_hours"] == pytest.approx(counted, abs=1e-3)
        summary = (
            f"{len(rows)} rows, {totals['allocated_gpu_hours']} of {totals['capacity_gpu_hours']} GPU hours"
        )
        observations.add(f"the month by {group_by}", summary)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
