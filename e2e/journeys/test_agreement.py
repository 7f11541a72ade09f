"""Compare all views of one moment: kubectl, promtool, live APIs, snapshot, hour, dashboard, command line.

Each view returns some of the same facts; all views with a fact must agree on it.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests import agreement

from e2e.journeys.conftest import MACHINES
from e2e.system import Observations, System, Users
from e2e.system.browser import dashboard, missing

Facts = dict[str, Any]
"""Total and held GPUs, the holder of each, and the utilization of held GPUs in percent."""

EXPECTED: Facts = {
    "GPUs": sum(int(state["count"]) for state in MACHINES.values()),
    "held": 5,
    "train": "node-a:0,1,2",
    "infer": "node-b:0,1",
    "busy": 48.0,
    "idle": 0,
    "rate": round(100 * 5 / sum(int(state["count"]) for state in MACHINES.values()), 1),
    "figures": "alike",
    "reports": "alike",
}
USED = {"node-a": dict.fromkeys((0, 1, 2), 60), "node-b": dict.fromkeys((0, 1), 30)}


def test_all_views_agree_at_the_same_time(system: System, users: Users, observations: Observations) -> None:
    began = datetime.now(UTC)
    for node, gpus in USED.items():
        system.set_utilization(node, gpus)
    users.claim("train", 3, spec={"selector": {"matchLabels": {"kubernetes.io/hostname": "node-a"}}})
    users.claim("infer", 2, spec={"selector": {"matchLabels": {"kubernetes.io/hostname": "node-b"}}})
    users.job("train", "train")
    users.pod("infer", "infer")
    users.running(*(pod["metadata"]["name"] for pod in users.pods()))

    system.cluster.wait_for("a snapshot", lambda: system.get("/api/v1/gpu-aggregation/snapshots"))
    views: dict[str, Callable[[], Facts]] = {
        "kubectl get gns": lambda: reports(system),
        "kubectl get gclaim": lambda: claims(system, users),
        "kubectl get leases": lambda: {"held": len(system.leases())},
        "kubectl get pods": lambda: pods(users),
        "promtool": lambda: measured(system, users),
        "gpufleet explain": lambda: explained(system, users),
        "gpufleet get": lambda: listed(system, users),
        "GET /api/clusters/overview": lambda: overview(system),
        "GET /api/nodes": lambda: nodes(system),
        "GET /api/workloads": lambda: workloads(system, users),
        "GET /api/v1/gpu/metrics": lambda: metrics(system, users),
        "GET …/snapshots/latest": lambda: snapshot(system, users),
        "GET …/hourly-stats": lambda: hours(system, users, began),
        "live views": lambda: live(system, users),
        "accounts": lambda: accounts(system, began),
    }
    if missing():
        observations.add("the dashboard", f"skipped: this machine lacks {missing()}")
    else:
        views["the dashboard"] = lambda: shown(system, users)
    observed: dict[str, Facts] = {}

    def agree() -> bool:
        """Read again the views that are not up to date yet: they refresh every few seconds."""
        for name, read in views.items():
            if not observed.get(name) or not observed[name].items() <= EXPECTED.items():
                try:
                    observed[name] = read()
                except (AssertionError, LookupError, ValueError) as reason:
                    observed[name] = {"error": repr(reason)}
        return all(facts and facts.items() <= EXPECTED.items() for facts in observed.values())

    try:
        system.cluster.wait_for("agreement", agree, timeout=120)
    except TimeoutError:
        wrong = {
            name: facts
            for name, facts in observed.items()
            if not facts or not facts.items() <= EXPECTED.items()
        }
        raise AssertionError(f"these views disagree with {EXPECTED}: {wrong}") from None
    for name, facts in observed.items():
        observations.add(name, ", ".join(f"{fact} {value}" for fact, value in facts.items()))


def reports(system: System) -> Facts:
    found = json.loads(system.cluster.kubectl("get", "gns", "-o", "json"))["items"]
    total, free = (sum(each["status"][field] for each in found) for field in ("total", "free"))
    return {"GPUs": total, "held": total - free}


def claims(system: System, users: Users) -> Facts:
    found = json.loads(system.cluster.kubectl("get", "gclaim", "-o", "json", namespace=users.namespace))
    return {each["metadata"]["name"]: each["status"].get("allocated") for each in found["items"]}


def pods(users: Users) -> Facts:
    return {_owner(pod): users.allocated(pod["metadata"]["name"]) for pod in users.pods()}


def measured(system: System, users: Users) -> Facts:
    """Prometheus has no holders; the leases show which GPUs are held."""
    query = system.prometheus.promtool
    samples = {
        (each["metric"]["node"], int(each["metric"]["gpu"])): float(each["value"][1])
        for each in query("nvidia_gpu_utilization_percent")
    }
    held = [re.fullmatch(r"gpu-(.+)-(\d+)", name) for name in system.leases()]
    busy = [samples[found[1], int(found[2])] for found in held if found]
    [count] = query("count(nvidia_gpu_healthy)")
    return {"GPUs": int(count["value"][1]), "busy": sum(busy) / len(busy)}


def explained(system: System, users: Users) -> Facts:
    """Run `gpufleet explain pod` for each pod; it prints `allocated: node-a:0,1,2`."""
    found = {}
    for pod in users.pods():
        flags = ("-n", users.namespace, "--kubeconfig", str(system.cluster.kubeconfig))
        output = system.gpufleet("explain", "pod", pod["metadata"]["name"], *flags, "-o", "json").stdout
        found[_owner(pod)] = json.loads(output)["sentence"].removeprefix("allocated: ")
    return found


def listed(system: System, users: Users) -> Facts:
    """Return the facts of `gpufleet get`; each list must equal the API's before and after, and kubectl's."""
    nodes, gpus, rows, claims, leases = (
        get(system, *command)
        for command in (
            ("nodes", "/api/nodes"),
            ("gpus", "/api/gpus"),
            ("workloads", "/api/workloads"),
            ("claims", "/api/claims"),
            ("leases", "/api/leases"),
        )
    )
    kubectl = system.cluster.kubectl
    for found, names in (
        (nodes, kubectl("get", "gns", "-o", "name")),
        (claims, kubectl("get", "gclaim", "-A", "-o", "name")),
        (leases, "\n".join(system.leases())),
    ):
        expected = [name.rpartition("/")[2] for name in names.split()]
        assert sorted(row["name"] for row in found) == sorted(expected)
    holders = {(gpu["node"], gpu["index"]) for gpu in gpus if gpu["holders"]}
    assert holders == {(lease["node"], lease["gpu"]) for lease in leases}
    busy = [gpu["utilization"] for gpu in gpus if gpu["holders"]]
    ours = [row for row in rows if row["namespace"] == users.namespace and row["status"] == "Running"]
    return {
        "GPUs": sum(node["gpuTotal"] for node in nodes),
        "held": sum(row["gpuAllocated"] for row in ours),
        "busy": round(100 * sum(busy) / len(busy), 2),
        **{row["name"]: f"{row['nodeName']}:{','.join(map(str, row['gpuIds']))}" for row in claims},
    }


def get(system: System, resource: str, path: str) -> list[dict[str, Any]]:
    """Return the rows of `gpufleet get`, which must be the API's of that time."""
    site = _site(system)
    token = site.headers["Authorization"].removeprefix("Bearer ")
    before = site.rows(path)
    done = system.gpufleet("get", resource, "-o", "json", "--server", site.url, GPUFLEET_TOKEN=token)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    assert found in (before, site.rows(path)), f"gpufleet get {resource} differs from {path}"
    return found


def overview(system: System) -> Facts:
    found = system.get("/api/clusters/overview")
    busy = round(found["utilization"] * 100, 2) if found["utilization"] is not None else None
    return {
        "GPUs": found["totalGpus"],
        "held": found["allocatedGpus"],
        "busy": busy,
        "idle": found["idleGpus"],
        "rate": round((found["allocationRate"] or 0) * 100, 1),
    }


def nodes(system: System) -> Facts:
    rows = system.get("/api/nodes?pageSize=100")["data"]
    return {"GPUs": sum(row["gpuTotal"] for row in rows), "held": sum(row["gpuAllocated"] for row in rows)}


def workloads(system: System, users: Users) -> Facts:
    rows = system.get(f"/api/workloads?namespace={users.namespace}&status=Running")["data"]
    return {"held": sum(row["gpuAllocated"] for row in rows)} if len(rows) == 2 else {}


def metrics(system: System, users: Users) -> Facts:
    rows = system.get(f"/api/v1/gpu/metrics?namespace={users.namespace}")
    workload_on = {"node-a": "train", "node-b": "infer"}
    found: Facts = {}
    for row in rows:
        name = workload_on[row["node_name"]]
        found[name] = (
            f"{found[name]},{row['gpu_index']}" if name in found else f"{row['node_name']}:{row['gpu_index']}"
        )
    busy = [row["utilization"] for row in rows]
    return {**found, "busy": sum(busy) / len(busy)} if rows else {}


def snapshot(system: System, users: Users) -> Facts:
    found = system.get("/api/v1/gpu-aggregation/snapshots/latest")
    ours = found["allocation_details"]["namespaces"].get(users.namespace)
    if ours is None:
        return {}
    return {"GPUs": found["total_gpu_capacity"], "held": ours["allocated_gpu"], "busy": ours["utilization"]}


def hours(system: System, users: Users, began: datetime) -> Facts:
    """Return GPUs and utilization of the workloads in their newest hour."""
    system.backfill_hours(began)
    end = datetime.now(UTC) + timedelta(hours=1)
    span = f"start_time={began:%Y-%m-%dT%H:00:00Z}&end_time={end:%Y-%m-%dT%H:00:00Z}"
    path = "/api/v1/gpu-aggregation/workloads/hourly-stats"
    rows = system.get(f"{path}?namespace={users.namespace}&{span}")["data"]
    newest = {row["workload_name"]: row for row in rows if row["avg_utilization"] is not None}
    if newest.keys() != {"train", "infer"}:
        return {}
    held = {name: row["requested_gpu_count"] for name, row in newest.items()}
    busy = sum(held[name] * row["avg_utilization"] for name, row in newest.items()) / sum(held.values())
    return {"held": sum(held.values()), "busy": round(busy, 2)}


def live(system: System, users: Users) -> Facts:
    """Compare the live views with each other, as `tests/agreement.py` does for the demo."""
    found = agreement.check_live(_site(system))
    return {"GPUs": found["totalGpus"], "held": found["allocatedGpus"], "figures": "alike"}


def accounts(system: System, began: datetime) -> Facts:
    """Compare hours, report, CSV and waste of the day, as `tests/agreement.py` does for the demo."""
    found = agreement.check_accounts(_site(system), f"{began:%Y-%m-%d}")
    return {"reports": "alike"} if found["allocated_gpu_hours"] else {}


def _site(system: System) -> agreement.Site:
    [cluster] = system.get("/api/clusters")
    return agreement.Site(system.server.url, system.login(), cluster["name"])


def shown(system: System, users: Users) -> Facts:
    with dashboard(system) as page:
        allocated = page.get_by_text(re.compile(r"^\d+ of \d+ schedulable GPUs$")).inner_text()
        held, total = re.findall(r"\d+", allocated)
        rate = (
            page.locator(".stat", has_text="Allocated (schedulable GPUs)").locator(".stat-value").inner_text()
        )
        assert rate == f"{100 * int(held) / int(total):.0f}%"
        idle = page.locator(".stat", has_text="Idle while allocated").locator(".stat-value").inner_text()
        used = page.locator(".stat", has_text="Utilization (allocated GPUs)").locator(".stat-value")
        busy = float(used.inner_text().rstrip("%\u202f\u00a0 "))
        page.goto(f"{system.server.url}/#/workloads?namespace={users.namespace}")
        page.get_by_role("link", name="train", exact=True).wait_for()
        names = [row.get_by_role("link").first.inner_text() for row in page.locator("tbody tr").all()]
    assert sorted(names) == ["infer", "train"]
    return {"GPUs": int(total), "held": int(held), "busy": busy, "idle": int(idle.split()[0])}


def _owner(pod: dict[str, Any]) -> str:
    metadata = pod["metadata"]
    return str(metadata.get("labels", {}).get("job-name", metadata["name"]))
