"""The tools: each reads the API and returns data with its evidence."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gpufleet.mcp.answers import answer
from gpufleet.mcp.fit import fit
from gpufleet.mcp.fleet_api import FleetApi, path_of

Json = dict[str, Any]
ClusterName = Annotated[str, Field(description="Cluster; the default one if empty.", max_length=253)]
Name = Annotated[str, Field(description="Name, exactly as a list shows it.", min_length=1, max_length=253)]
Page = Annotated[int, Field(description="Page number, from 1.", ge=1, le=1_000_000)]
Size = Annotated[int, Field(description="Rows per page.", ge=1, le=100)]
Model = Annotated[str, Field(description="GPU model in any spelling, such as h100.", max_length=253)]
Namespace = Annotated[str, Field(description="Namespace; all if empty.", max_length=253)]
Period = Annotated[
    str,
    Field(
        description="A month (2026-10), a day (2026-10-05) or days (2026-10-05..2026-10-11), in UTC.",
        pattern=r"^\d{4}-\d{2}(-\d{2})?(\.\.\d{4}-\d{2}(-\d{2})?)?$",
    ),
]
_NODES = "/api/nodes"
_AGGREGATION = "/api/v1/gpu-aggregation"
_MAX_PAGES = 200
_MAX_FAULTY = 20


async def list_clusters(api: FleetApi) -> Json:
    """List the clusters that the server follows."""
    return answer(api, {"clusters": await api.read("/api/clusters")})


async def fleet_overview(api: FleetApi, cluster: ClusterName = "") -> Json:
    """Count nodes and GPUs: total, allocated, schedulable, idle, faulty; allocation rate and utilization (0 to 1)."""
    return answer(api, await api.read("/api/clusters/overview", {"cluster": cluster}))


async def list_nodes(
    api: FleetApi,
    cluster: ClusterName = "",
    state: Literal["", "faulty", "idle", "partial", "busy", "unknown"] = "",
    model: Model = "",
    name: Annotated[str, Field(description="Part of the name.", max_length=253)] = "",
    page: Page = 1,
    page_size: Size = 50,
) -> Json:
    """List GPU nodes with state, model, total and allocated GPUs, utilization (0 to 1) and the reason of a fault."""
    params = {
        "cluster": cluster,
        "state": state,
        "model": model,
        "name": name,
        "pageNum": page,
        "pageSize": page_size,
    }
    return answer(api, await api.read(_NODES, params))


async def get_node(api: FleetApi, name: Name, cluster: ClusterName = "") -> Json:
    """Show one node: each GPU with health, utilization, memory, temperature, power and the workloads on it."""
    return answer(api, await api.read(path_of(_NODES, name), {"cluster": cluster}))


async def list_workloads(
    api: FleetApi,
    cluster: ClusterName = "",
    namespace: Namespace = "",
    status: Literal["", "Pending", "Running", "Completed", "Failed", "Unknown"] = "",
    kind: Annotated[str, Field(description="Kind, such as Job.", max_length=253)] = "",
    name: Annotated[str, Field(description="Part of the name.", max_length=253)] = "",
    model: Model = "",
    page: Page = 1,
    page_size: Size = 50,
) -> Json:
    """List GPU workloads with status, GPUs, times and why they wait; `total` counts all that match."""
    params = {"cluster": cluster, "namespace": namespace, "status": status, "kind": kind, "name": name}
    paging = {"model": model, "pageNum": page, "pageSize": page_size}
    return answer(api, await api.read("/api/workloads", {**params, **paging}))


async def get_workload(api: FleetApi, uid: Name, cluster: ClusterName = "") -> Json:
    """Show one workload by its uid, with its pods and GPUs."""
    return answer(api, await api.read(path_of("/api/workloads", uid), {"cluster": cluster}))


async def top_consumers(
    api: FleetApi, cluster: ClusterName = "", page: Page = 1, page_size: Size = 20
) -> Json:
    """List running workloads by the GPUs that they hold, the largest first, with utilization (0 to 1)."""
    params = {"cluster": cluster, "pageNum": page, "pageSize": page_size}
    return answer(api, await api.read("/api/clusters/consumers", params))


async def list_claims(
    api: FleetApi,
    cluster: ClusterName = "",
    namespace: Namespace = "",
    phase: Annotated[str, Field(description="Phase, such as Pending or Bound.", max_length=40)] = "",
    page: Page = 1,
    page_size: Size = 50,
) -> Json:
    """List GpuClaims with their phase and the GPUs that they have."""
    params = {"cluster": cluster, "namespace": namespace, "phase": phase}
    paging = {"pageNum": page, "pageSize": page_size}
    return answer(api, await api.read("/api/claims", {**params, **paging}))


async def queue(api: FleetApi, cluster: ClusterName = "", namespace: Namespace = "") -> Json:
    """Show what waits for GPUs: pending workloads with the reason, and the number of GPUs that they request."""
    params = {"cluster": cluster, "namespace": namespace, "status": "Pending", "pageSize": 100}
    waiting = await api.read("/api/workloads", params)
    requested = sum(each["gpuRequested"] for each in waiting["data"])
    return answer(
        api,
        {
            "waiting": waiting["total"],
            "shown": len(waiting["data"]),
            "gpus_requested_by_shown": requested,
            "workloads": waiting["data"],
        },
    )


async def explain_claim(api: FleetApi, namespace: Name, name: Name, cluster: ClusterName = "") -> Json:
    """Explain why a GpuClaim waits, and what would make it fit."""
    return answer(
        api, await api.read(path_of("/api/claims", namespace, name, "explain"), {"cluster": cluster})
    )


async def usage_report(
    api: FleetApi,
    period: Period,
    group_by: Annotated[
        str, Field(description="namespace, workload, label:KEY or annotation:KEY.", max_length=400)
    ] = "namespace",
    groups: Annotated[int, Field(description="Number of largest groups to list.", ge=1, le=100)] = 20,
    cluster: ClusterName = "",
) -> Json:
    """Report GPU-hours, idle GPU-hours, utilization (percent), energy (kWh) and cost of a period by group."""
    params = {"period": period, "group_by": group_by, "groups": groups, "cluster": cluster}
    return answer(api, await api.read(f"{_AGGREGATION}/report", params))


async def idle_workloads(
    api: FleetApi, cluster: ClusterName = "", page: Page = 1, page_size: Size = 20
) -> Json:
    """List the workloads of the last seven days by idle GPU-hours, with the cost of these hours."""
    params = {"cluster": cluster, "page": page, "page_size": page_size}
    return answer(api, await api.read(f"{_AGGREGATION}/waste", params))


async def findings(api: FleetApi, cluster: ClusterName = "") -> Json:
    """Show what is wrong: faulty nodes, unhealthy GPUs with their reasons, and dependencies that do not answer."""
    health = await api.read("/api/healthz")
    faulty = await api.read(_NODES, {"cluster": cluster, "state": "faulty", "pageSize": _MAX_FAULTY})
    gpus = []
    for node in faulty["data"]:
        detail = await api.read(path_of(_NODES, node["name"]), {"cluster": cluster})
        gpus += [
            {
                "node": node["name"],
                "gpu": gpu["index"],
                "health": gpu["health"],
                "healthReason": gpu["healthReason"],
                "healthSince": gpu["healthSince"],
            }
            for gpu in detail["gpus"]
            if gpu["health"] == "Unhealthy"
        ]
    return answer(
        api,
        {
            "faulty_nodes": faulty["total"],
            "nodes": faulty["data"],
            "unhealthy_gpus": gpus,
            "server": health,
        },
    )


async def hottest_gpus(
    api: FleetApi, cluster: ClusterName = "", count: Annotated[int, Field(ge=1, le=100)] = 10
) -> Json:
    """List the GPUs with the highest utilization, memory use and temperature."""
    found = await api.read("/api/clusters/gpuHeatmap", {"cluster": cluster, "topK": count})
    return answer(api, {"gpus": found})


async def fit_now(
    api: FleetApi,
    gpus: Annotated[int, Field(description="GPUs of one request, on one node.", ge=1, le=1024)],
    copies: Annotated[int, Field(description="Number of such requests.", ge=1, le=1000)] = 1,
    model: Model = "",
    cluster: ClusterName = "",
) -> Json:
    """Simulate whether requests for GPUs fit on the free GPUs now, and on which nodes. Nothing is allocated."""
    nodes: list[Any] = []
    for number in range(1, _MAX_PAGES + 1):
        page = await api.read(
            _NODES, {"cluster": cluster, "model": model, "pageNum": number, "pageSize": 1000}
        )
        nodes += page["data"]
        if len(nodes) >= page["total"] or not page["data"]:
            break
    return answer(api, {"gpus_per_request": gpus, "model": model, **fit(nodes, gpus, copies)})


TOOLS = (
    list_clusters,
    fleet_overview,
    list_nodes,
    get_node,
    list_workloads,
    get_workload,
    top_consumers,
    list_claims,
    queue,
    explain_claim,
    usage_report,
    idle_workloads,
    findings,
    hottest_gpus,
    fit_now,
)
