"""The methods of the clients: the calls, sent by a sync or an async sender.

Generated from the OpenAPI document by `python -m dashboard.tools.api_types`. Do not edit.
"""

from gpufleet.client import calls
from gpufleet.client.binding import async_one, async_rows, one, rows


class Methods:
    """One method for each GET route; they block."""

    claims = rows(calls.claims)
    explain_claim = one(calls.explain_claim)
    clusters = one(calls.clusters)
    consumers = rows(calls.consumers)
    gpu_heatmap = one(calls.gpu_heatmap)
    overview = one(calls.overview)
    gpus = rows(calls.gpus)
    healthz = one(calls.healthz)
    leases = rows(calls.leases)
    nodes = rows(calls.nodes)
    node = one(calls.node)
    node_metrics = one(calls.node_metrics)
    node_occupancy = one(calls.node_occupancy)
    explain_pod = one(calls.explain_pod)
    cluster_hours = rows(calls.cluster_hours)
    accounted_clusters = one(calls.accounted_clusters)
    dimension_keys = one(calls.dimension_keys)
    dimension_values = one(calls.dimension_values)
    label_hours = rows(calls.label_hours)
    accounted_namespaces = one(calls.accounted_namespaces)
    namespace_hours = rows(calls.namespace_hours)
    report = one(calls.report)
    snapshots = rows(calls.snapshots)
    latest_snapshot = one(calls.latest_snapshot)
    waste = rows(calls.waste)
    workload_hours = rows(calls.workload_hours)
    gpu_map = one(calls.gpu_map)
    gpu_metrics = one(calls.gpu_metrics)
    processes = one(calls.processes)
    workload_metadata = one(calls.workload_metadata)
    workloads = rows(calls.workloads)
    workload = one(calls.workload)
    workload_hierarchy = one(calls.workload_hierarchy)
    workload_metrics = one(calls.workload_metrics)
    training_performance = one(calls.training_performance)
    me = one(calls.me)


class AsyncMethods:
    """One method for each GET route; they are awaited."""

    claims = async_rows(calls.claims)
    explain_claim = async_one(calls.explain_claim)
    clusters = async_one(calls.clusters)
    consumers = async_rows(calls.consumers)
    gpu_heatmap = async_one(calls.gpu_heatmap)
    overview = async_one(calls.overview)
    gpus = async_rows(calls.gpus)
    healthz = async_one(calls.healthz)
    leases = async_rows(calls.leases)
    nodes = async_rows(calls.nodes)
    node = async_one(calls.node)
    node_metrics = async_one(calls.node_metrics)
    node_occupancy = async_one(calls.node_occupancy)
    explain_pod = async_one(calls.explain_pod)
    cluster_hours = async_rows(calls.cluster_hours)
    accounted_clusters = async_one(calls.accounted_clusters)
    dimension_keys = async_one(calls.dimension_keys)
    dimension_values = async_one(calls.dimension_values)
    label_hours = async_rows(calls.label_hours)
    accounted_namespaces = async_one(calls.accounted_namespaces)
    namespace_hours = async_rows(calls.namespace_hours)
    report = async_one(calls.report)
    snapshots = async_rows(calls.snapshots)
    latest_snapshot = async_one(calls.latest_snapshot)
    waste = async_rows(calls.waste)
    workload_hours = async_rows(calls.workload_hours)
    gpu_map = async_one(calls.gpu_map)
    gpu_metrics = async_one(calls.gpu_metrics)
    processes = async_one(calls.processes)
    workload_metadata = async_one(calls.workload_metadata)
    workloads = async_rows(calls.workloads)
    workload = async_one(calls.workload)
    workload_hierarchy = async_one(calls.workload_hierarchy)
    workload_metrics = async_one(calls.workload_metrics)
    training_performance = async_one(calls.training_performance)
    me = async_one(calls.me)
