"""All groups of rules, by the chart that creates them."""

from mixin.table import agent_alerts, fleet_alerts, scheduler_alerts, server_alerts
from mixin.table.rule import Group, Recording

_FLEET = (
    Recording("cluster_state:gpufleet_gpus:max", "max by (cluster, state) (gpufleet_gpus)"),
    Recording("cluster_state:gpufleet_nodes:max", "max by (cluster, state) (gpufleet_nodes)"),
    Recording(
        "cluster:gpufleet_allocation:ratio",
        'max by (cluster) (gpufleet_gpus{state="schedulable_allocated"}) '
        '/ (max by (cluster) (gpufleet_gpus{state="schedulable"}) > 0)',
    ),
    Recording(
        "namespace:gpufleet_held_gpus:max",
        'max by (cluster, namespace) (gpufleet_namespace_gpus{state="held"})',
    ),
    Recording(
        "route:gpufleet_http_request_seconds:p99_5m",
        "histogram_quantile(0.99, sum by (le, route) (rate(gpufleet_http_request_seconds_bucket[5m])))",
    ),
)
_SCHEDULER = (
    Recording(
        "phase:gpufleet_scheduler_phase_seconds:p99_5m",
        "histogram_quantile(0.99, sum by (le, phase) (rate(gpufleet_scheduler_phase_seconds_bucket{<<scheduler>>}[5m])))",
    ),
    Recording(
        "outcome:gpufleet_scheduler_decisions:rate5m",
        "sum by (outcome) (rate(gpufleet_scheduler_decisions_total{<<scheduler>>}[5m]))",
    ),
)
_AGENT = (
    Recording("node:nvidia_gpu_utilization_percent:avg", "avg by (node) (nvidia_gpu_utilization_percent)"),
    Recording("node:nvidia_gpu_power_watts:sum", "sum by (node) (nvidia_gpu_power_watts)"),
    Recording(
        "node:nvidia_gpu_energy_joules:rate5m", "sum by (node) (rate(nvidia_gpu_energy_joules_total[5m]))"
    ),
)

GROUPS = (
    Group("fleet-recording", "gpufleet", recordings=_FLEET),
    Group("fleet", "gpufleet", fleet_alerts.ALERTS),
    Group("server", "gpufleet", server_alerts.ALERTS),
    Group("scheduler-recording", "gpu-scheduler", recordings=_SCHEDULER),
    Group("scheduler", "gpu-scheduler", scheduler_alerts.ALERTS),
    Group("agent-recording", "gpu-scheduler", recordings=_AGENT, condition="agent.enabled"),
    Group("agent", "gpu-scheduler", agent_alerts.ALERTS, condition="agent.enabled"),
)
ALERTS = tuple(alert for group in GROUPS for alert in group.alerts)
