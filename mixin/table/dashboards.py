"""The dashboards: fleet, node, workload, accounting, scheduler."""

from mixin.table.panels import Dashboard, Panel, Query, Request, Variable

_CLUSTER = Variable("cluster", "Cluster", "label_values(gpufleet_nodes, cluster)")


def _gpus(state: str) -> str:
    """Return the GPUs of a state; several servers report the same cluster."""
    return f'max by (cluster) (gpufleet_gpus{{cluster=~"$cluster",state="{state}"}})'


def _namespaces(state: str) -> str:
    return (
        "max by (cluster, namespace) "
        f'(gpufleet_namespace_gpus{{cluster=~"$cluster",namespace=~"$namespace",state="{state}"}})'
    )


def _stat(title: str, expr: str, unit: str = "", width: int = 4, red_from: float | None = None) -> Panel:
    return Panel(title, (Query(expr),), "stat", unit, width, 4, red_from=red_from)


FLEET = Dashboard(
    "fleet.json",
    "gpufleet-fleet",
    "GPU fleet",
    (_CLUSTER,),
    (
        _stat("GPUs", f"sum({_gpus('all')})"),
        _stat(
            "Allocated (of schedulable GPUs)",
            f"sum({_gpus('schedulable_allocated')}) / sum({_gpus('schedulable')} and {_gpus('schedulable_allocated')})",
            "percentunit",
        ),
        _stat("Idle while allocated", f"sum({_gpus('idle')})"),
        _stat("Unhealthy", f"sum({_gpus('unhealthy')})", red_from=1),
        _stat(
            "Faulty nodes",
            'sum(max by (cluster) (gpufleet_nodes{cluster=~"$cluster",state="faulty"}))',
            red_from=1,
        ),
        _stat("Age of readings", 'max(gpufleet_refresh_age_seconds{source="readings"})', "s"),
        Panel(
            "Nodes by state",
            (
                Query(
                    'sum by (state) (max by (cluster, state) (gpufleet_nodes{cluster=~"$cluster"}))',
                    "{{state}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "GPUs",
            (
                Query(
                    'sum by (state) (max by (cluster, state) (gpufleet_gpus{cluster=~"$cluster"}))',
                    "{{state}}",
                ),
            ),
        ),
        Panel(
            "Requests by status",
            (Query("sum by (status) (rate(gpufleet_http_request_seconds_count[5m]))", "{{status}}"),),
            unit="reqps",
            width=8,
        ),
        Panel(
            "Slowest routes (p99)",
            (
                Query(
                    "topk(5, histogram_quantile(0.99, sum by (le, route) "
                    "(rate(gpufleet_http_request_seconds_bucket[5m]))))",
                    "{{route}}",
                ),
            ),
            unit="s",
            width=8,
        ),
        Panel(
            "Errors of sources and database",
            (
                Query(
                    "sum by (source, cluster) (rate(gpufleet_source_errors_total[5m]))",
                    "{{source}} {{cluster}}",
                ),
                Query("sum by (operation) (rate(gpufleet_store_errors_total[5m]))", "{{operation}}"),
            ),
            unit="ops",
            width=8,
        ),
    ),
)


def _gpu_panel(title: str, metric: str, unit: str, *more: Query, percent: bool = False) -> Panel:
    query = Query(f'nvidia_gpu_{metric}{{node=~"$node"}}', "{{node}}/{{gpu}}")
    return Panel(title, (query, *more), unit=unit, percent=percent)


NODE = Dashboard(
    "node.json",
    "gpufleet-gpus",
    "GPUs of a node",
    (Variable("node", "Node", "label_values(nvidia_gpu_utilization_percent, node)"),),
    (
        _stat("GPUs", 'count(nvidia_gpu_healthy{node=~"$node"})'),
        _stat("Unhealthy", 'count(nvidia_gpu_healthy{node=~"$node"} == 0) or vector(0)', red_from=1),
        _stat("Mean utilization", 'avg(nvidia_gpu_utilization_percent{node=~"$node"})', "percent"),
        _stat("Power", 'sum(nvidia_gpu_power_watts{node=~"$node"})', "watt"),
        _stat("Hottest GPU", 'max(nvidia_gpu_temperature_celsius{node=~"$node"})', "celsius"),
        _stat(
            "Energy in the last hour",
            'sum(increase(nvidia_gpu_energy_joules_total{node=~"$node"}[1h]))',
            "joule",
        ),
        _gpu_panel("Utilization", "utilization_percent", "percent", percent=True),
        _gpu_panel("Memory used", "used_memory_bytes", "bytes"),
        _gpu_panel(
            "Power of each GPU",
            "power_watts",
            "watt",
            Query('max(nvidia_gpu_power_limit_watts{node=~"$node"})', "limit"),
        ),
        _gpu_panel("Temperature", "temperature_celsius", "celsius"),
        _gpu_panel("Clock of the multiprocessors", "sm_clock_hertz", "hertz"),
        Panel(
            "Memory errors",
            (
                Query(
                    'sum by (node, gpu) (increase(nvidia_gpu_ecc_uncorrected_errors_total{node=~"$node"}[1h]))',
                    "{{node}}/{{gpu}} uncorrected",
                ),
                Query(
                    'sum by (node, gpu) (increase(nvidia_gpu_ecc_corrected_errors_total{node=~"$node"}[1h]))',
                    "{{node}}/{{gpu}} corrected",
                ),
            ),
        ),
        Panel(
            "XIDs",
            (
                Query(
                    'sum by (node, gpu, xid) (increase(nvidia_gpu_xid_errors_total{node=~"$node"}[10m])) > 0 '
                    'or sum by (node, gpu, xid) (nvidia_gpu_xid_errors_total{node=~"$node"} '
                    "unless nvidia_gpu_xid_errors_total offset 10m) > 0",
                    "{{node}}/{{gpu}} XID {{xid}}",
                ),
            ),
        ),
        Panel(
            "Processes by GPU memory",
            (Query('topk(50, nvidia_gpu_process_gpu_memory_bytes{node=~"$node"})'),),
            "table",
            "bytes",
        ),
    ),
)

WORKLOAD = Dashboard(
    "workload.json",
    "gpufleet-workloads",
    "GPU workloads",
    (
        _CLUSTER,
        Variable("namespace", "Namespace", "label_values(gpufleet_namespace_gpus, namespace)"),
        Variable("uid", "Workload uid"),
    ),
    (
        _stat("GPUs held", f"sum({_namespaces('held')})", width=12),
        _stat("GPUs waited for", f"sum({_namespaces('pending')})", width=12),
        Panel(
            "GPUs held by namespace",
            (Query(f"sum by (namespace) ({_namespaces('held')})", "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "GPUs waited for by namespace",
            (Query(f"sum by (namespace) ({_namespaces('pending')})", "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "GPUs by workload",
            (
                Request(
                    "/api/clusters/consumers?pageSize=100",
                    "data.data",
                    (
                        ("kind", "Kind", "string"),
                        ("namespace", "Namespace", "string"),
                        ("name", "Name", "string"),
                        ("uid", "Uid", "string"),
                        ("stat.gpuRequest", "GPUs", "number"),
                        ("stat.gpuUtilization", "Utilization", "number"),
                    ),
                ),
            ),
            "table",
            width=24,
            height=10,
        ),
        Panel(
            "Training performance of the workload",
            (
                Request(
                    "/api/workloads/${uid}/trainingPerformance?start=${__from}&end=${__to}",
                    "data",
                    (
                        ("timestamp", "Time", "timestamp_epoch"),
                        ("metric", "Metric", "string"),
                        ("value", "Value", "number"),
                    ),
                ),
            ),
            width=24,
            height=10,
            transformations=({"id": "prepareTimeSeries", "options": {"format": "multi"}},),
        ),
    ),
)
_MONEY = (
    ("name", "Name", "string"),
    ("gpu_hours", "GPU-hours", "number"),
    ("idle_gpu_hours", "Idle GPU-hours", "number"),
    ("avg_utilization", "Utilization (%)", "number"),
    ("energy_kwh", "Energy (kWh)", "number"),
    ("cost", "Cost", "number"),
)

ACCOUNTING = Dashboard(
    "accounting.json",
    "gpufleet-accounting",
    "GPU accounting",
    (_CLUSTER, Variable("namespace", "Namespace", "label_values(gpufleet_namespace_gpus, namespace)")),
    (
        _stat(
            "GPU-hours held in the selected time",
            f"sum(avg_over_time({_namespaces('held')}[$__range:])) * $__range_s / 3600",
            width=8,
        ),
        _stat(
            "Age of the newest snapshot",
            'max(min by (cluster) (gpufleet_refresh_age_seconds{source="snapshots",cluster=~"$cluster"}))',
            "s",
            8,
        ),
        _stat(
            "Time since the last accounted hour",
            'max(min by (cluster) (gpufleet_refresh_age_seconds{source="hours",cluster=~"$cluster"}))',
            "s",
            8,
        ),
        Panel(
            "GPUs held by namespace (mean of an hour)",
            (Query(f"sum by (namespace) (avg_over_time({_namespaces('held')}[1h:5m]))", "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "Share of allocated GPUs that are idle",
            (Query(f"{_gpus('idle')} / ({_gpus('allocated')} > 0)", "{{cluster}}"),),
            unit="percentunit",
        ),
        Panel(
            "Cost of the month by namespace",
            (
                Request(
                    "/api/v1/gpu-aggregation/report?period=${__to:date:YYYY-MM}&group_by=namespace",
                    "data.rows",
                    _MONEY,
                ),
            ),
            "table",
        ),
        Panel(
            "Workloads with idle GPUs, last week",
            (
                Request(
                    "/api/v1/gpu-aggregation/waste?page_size=50",
                    "data.data",
                    (
                        ("namespace", "Namespace", "string"),
                        ("workload_name", "Workload", "string"),
                        ("idle_gpu_hours", "Idle GPU-hours", "number"),
                        ("idle_share", "Idle (%)", "number"),
                        ("idle_cost", "Cost of idle hours", "number"),
                    ),
                ),
            ),
            "table",
        ),
    ),
)

SCHEDULER = Dashboard(
    "scheduler.json",
    "gpufleet-scheduler",
    "GPU scheduler",
    (),
    (
        _stat("Leaders", "sum(gpufleet_scheduler_leading)"),
        _stat("Waiting pods and gangs", "max(gpufleet_scheduler_waiting)"),
        _stat("Free GPUs", "max(gpufleet_scheduler_free_gpus)"),
        _stat("Fragmentation", "max(gpufleet_scheduler_fragmentation_percent)", "percent"),
        _stat("Leases from elsewhere", "max(gpufleet_scheduler_foreign_leases)"),
        _stat("GPUs with two holders", "max(gpufleet_scheduler_overlapping_gpus)", red_from=1),
        Panel(
            "Decisions",
            (Query("sum by (outcome) (rate(gpufleet_scheduler_decisions_total[5m]))", "{{outcome}}"),),
            unit="ops",
        ),
        Panel(
            "Refused nodes by reason",
            (Query("topk(10, sum by (reason) (rate(gpufleet_scheduler_refusals_total[5m])))", "{{reason}}"),),
            unit="ops",
        ),
        Panel(
            "Duration of phases (p99)",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, phase) (rate(gpufleet_scheduler_phase_seconds_bucket[5m])))",
                    "{{phase}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Queue and free GPUs",
            (
                Query("max(gpufleet_scheduler_waiting)", "waiting"),
                Query("max(gpufleet_scheduler_free_gpus)", "free GPUs"),
            ),
        ),
        Panel("Held", (Query("max by (how) (gpufleet_scheduler_held)", "{{how}}"),)),
        Panel(
            "Corrected leases and cleared allocations",
            (
                Query(
                    "sum by (why) (increase(gpufleet_scheduler_leases_recovered_total[1h]))", "lease: {{why}}"
                ),
                Query(
                    "sum by (why) (increase(gpufleet_scheduler_allocations_cleared_total[1h]))",
                    "allocation: {{why}}",
                ),
            ),
        ),
        Panel(
            "Admission reviews",
            (
                Query(
                    "sum by (path, result) (rate(gpufleet_webhook_reviews_total[5m]))", "{{path}} {{result}}"
                ),
            ),
            unit="ops",
            description="The webhook serves metrics on its HTTPS port; a scrape job for it is yours to add.",
        ),
        Panel(
            "Duration of reviews (p99)",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, path) (rate(gpufleet_webhook_review_seconds_bucket[5m])))",
                    "{{path}}",
                ),
            ),
            unit="s",
        ),
    ),
)

DASHBOARDS = (FLEET, NODE, WORKLOAD, ACCOUNTING, SCHEDULER)
