"""Test that fleet, claims and bills count the same GPUs, whichever process is killed."""

from datetime import UTC, datetime, timedelta
from typing import Any

from e2e.node import resource_claims
from e2e.system import Observations, System, Users
from e2e.system.pod_processes import COMPONENTS

Counts = dict[str, Any]


def counts(system: System, users: Users, began: datetime) -> Counts:
    """Return the GPUs that each view counts: those of the claim, and with the device-plugin pod."""
    allocations = users.status("two").get("allocations", ())
    found = system.cluster.api.get(f"{resource_claims.API}/resourceclaims")["items"]
    statuses = [each.get("status", {}).get("allocation", {}) for each in found]
    end = datetime.now(UTC) + timedelta(hours=1)
    span = f"start_time={began:%Y-%m-%dT%H:00:00Z}&end_time={end:%Y-%m-%dT%H:00:00Z}&include_current=true"
    path = "/api/v1/gpu-aggregation/workloads/hourly-stats"
    rows = system.get(f"{path}?namespace={users.namespace}&{span}")["data"]
    newest = {row["workload_name"]: row["requested_gpu_count"] for row in rows}
    return {
        "claims": sum(len(each["gpuIds"]) for each in allocations),
        "leases": len(system.leases()),
        "devices": sum(len(each.get("devices", {}).get("results", ())) for each in statuses),
        "fleet": system.get("/api/clusters/overview")["allocatedGpus"],
        "billed": sum(newest.values()),
    }


def test_fleet_claims_and_bills_count_the_same_gpus_through_kills(
    system: System, users: Users, observations: Observations
) -> None:
    check_through_kills(system, users, observations)


def check_through_kills(system: System, users: Users, observations: Observations) -> None:
    """Kill every process and compare the counts after each."""
    cluster, began = system.cluster, datetime.now(UTC)
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    plain: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain"},
        "spec": {
            "nodeName": "node-b",
            "containers": [{"name": "c", "image": "i", "resources": resources}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    cluster.api.create(f"/api/v1/namespaces/{users.namespace}/pods", plain)
    users.claim("two", 2)
    for name in ("first", "second"):
        users.pod(name, "two")
    users.running("plain", "first", "second")
    dra = system.scheduler_values.get("delivery") == "dra"
    expected = {"claims": 4, "leases": 4, "devices": 4 if dra else 0, "fleet": 5, "billed": 5}
    seen: list[Counts] = []

    def agree() -> bool:
        seen.append(counts(system, users, began))
        return seen[-1] == expected

    def check(moment: str) -> None:
        try:
            cluster.wait_for("the same counts", agree, timeout=60)
        except TimeoutError:
            raise AssertionError(f"{moment}: {seen[-1]}, not {expected}") from None
        observations.add(moment, ", ".join(f"{view} {number}" for view, number in seen[-1].items()))

    check("at the start")
    for component in COMPONENTS:
        for each in system.processes.of(component):
            each.process.kill()
        for each in system.processes.of(component):
            each.process.spawn()
        system.processes.wait_until_ready()
        check(f"{component} killed and started again")
    # Not the API server: it refuses requests for a moment after its start, which test_rbac.py would find.
    for process in (cluster.controller_manager, cluster.scheduler):
        process.kill()
        process.start()
        check(f"the cluster's {process.name} killed and started again")
    users.delete("first")
    expected |= {"claims": 2, "leases": 2, "devices": 2 if dra else 0, "fleet": 3}
    check("one pod deleted")
