"""Alerts about the scheduler."""

from mixin.table.rule import Alert, Firing

_BUCKET = 'gpufleet_scheduler_phase_seconds_bucket{job="gpu-scheduler",phase="filter",le="%s"}'


def _metric(name: str, labels: str = "") -> str:
    """Return a series of the scheduler's job."""
    return f'gpufleet_scheduler_{name}{{job="gpu-scheduler"{labels}}}'


ALERTS = (
    Alert(
        "GpuSchedulerWithoutLeader",
        "absent(gpufleet_scheduler_leading{<<scheduler>>} == 1)",
        "critical",
        "The GPU scheduler has no leader",
        "Pods with a GpuClaim stay pending. Running pods are not affected.",
        Firing({_metric("leading"): "0x30"}, 20),
        {_metric("leading"): "1x30"},
        "2m",
    ),
    Alert(
        "GpuSchedulerWithTwoLeaders",
        "sum(gpufleet_scheduler_leading{<<scheduler>>}) > 1",
        "warning",
        "{{ $value }} replicas of the GPU scheduler lead at the same time",
        "Leases still keep each GPU from being allocated twice, but both replicas plan for the same pods. Clocks "
        "may differ, or two releases serve one cluster.",
        Firing(
            {_metric("leading", ',instance="a"'): "1x30", _metric("leading", ',instance="b"'): "1x30"},
            20,
            value="2",
        ),
        {_metric("leading", ',instance="a"'): "1x30", _metric("leading", ',instance="b"'): "0x30"},
        "5m",
    ),
    Alert(
        "GpuBindsFail",
        'sum(rate(gpufleet_scheduler_decisions_total{<<scheduler>>,outcome="bind_failed"}[10m])) > 0.1',
        "warning",
        "Binding pods to their GPUs fails",
        "More than one bind fails every ten seconds. The scheduler's log has the reason.",
        Firing({_metric("decisions_total", ',outcome="bind_failed"'): "0+12x40"}, 30),
        {_metric("decisions_total", ',outcome="bind_failed"'): "0+1x40"},
        "10m",
    ),
    Alert(
        "GpuQueueStuck",
        "max(gpufleet_scheduler_waiting{<<scheduler>>}) > 0 "
        "and max(gpufleet_scheduler_free_gpus{<<scheduler>>}) > 0 "
        'and sum(increase(gpufleet_scheduler_decisions_total{<<scheduler>>,outcome=~"bound|allocated"}[30m])) == 0',
        "warning",
        "{{ $value }} pods and gangs wait, GPUs are free, and nothing was bound for half an hour",
        "The first of the queue may need more GPUs than are free, with GPUs reserved for it. `gpufleet explain pod` "
        "names the reason.",
        Firing(
            {
                _metric("waiting"): "3x90",
                _metric("free_gpus"): "8x90",
                _metric("decisions_total", ',outcome="bound"'): "5x90",
            },
            80,
            value="3",
        ),
        {
            _metric("waiting"): "3x90",
            _metric("free_gpus"): "8x90",
            _metric("decisions_total", ',outcome="bound"'): "0+1x90",
        },
        "30m",
    ),
    Alert(
        "GpusFragmented",
        "max(gpufleet_scheduler_fragmentation_percent{<<scheduler>>}) > 50 "
        "and max(gpufleet_scheduler_free_gpus{<<scheduler>>}) >= 8",
        "info",
        "{{ $value | humanize }}% of the free GPUs can't be used by the pods that wait",
        "The free GPUs are spread over too many nodes or have another model than requested.",
        Firing({_metric("fragmentation_percent"): "75x90", _metric("free_gpus"): "16x90"}, 80, value="75"),
        {_metric("fragmentation_percent"): "75x90", _metric("free_gpus"): "2x90"},
        "1h",
    ),
    Alert(
        "GpuSchedulerSlow",
        "histogram_quantile(0.99, sum by (le, phase) (rate(gpufleet_scheduler_phase_seconds_bucket{<<scheduler>>}[5m])))"
        " > 1",
        "warning",
        "One percent of the calls of phase {{ $labels.phase }} take more than {{ $value | humanizeDuration }}",
        "kube-scheduler waits for the extender. The API server may be slow, or the scheduler has too little CPU.",
        Firing(
            {_BUCKET % "1.0": "0+0x30", _BUCKET % "2.5": "0+60x30", _BUCKET % "+Inf": "0+60x30"},
            25,
            {"phase": "filter"},
            "2.485s",
        ),
        {_BUCKET % "1.0": "0+60x30", _BUCKET % "2.5": "0+60x30", _BUCKET % "+Inf": "0+60x30"},
        "10m",
    ),
    Alert(
        "GpuLeasesRecovered",
        "sum by (why) (increase(gpufleet_scheduler_leases_recovered_total{<<scheduler>>}[1h])) > 20",
        "warning",
        "More than 20 leases were corrected within an hour ({{ $labels.why }})",
        "Leases did not match their pods. Another program may delete them, or binds fail halfway.",
        Firing(
            {_metric("leases_recovered_total", ',why="lease_deleted"'): "0+1x120"},
            100,
            {"why": "lease_deleted"},
        ),
        {_metric("leases_recovered_total", ',why="lease_deleted"'): "0 3x120"},
    ),
    Alert(
        "GpuAllocationsCleared",
        "sum by (why) (rate(gpufleet_scheduler_allocations_cleared_total{<<scheduler>>}[15m])) > 0.05",
        "warning",
        "Allocations of ResourceClaims are cleared again and again ({{ $labels.why }})",
        "Pods get GPUs and lose them before they start. docs/delivery.md lists the reasons.",
        Firing(
            {_metric("allocations_cleared_total", ',why="kube_scheduler"'): "0+6x60"},
            50,
            {"why": "kube_scheduler"},
        ),
        {_metric("allocations_cleared_total", ',why="kube_scheduler"'): "0+1x60"},
        "15m",
    ),
    Alert(
        "GpuLeasesFromElsewhere",
        "max(gpufleet_scheduler_foreign_leases{<<scheduler>>}) > 0",
        "info",
        "GPUs are reserved by leases that the scheduler did not create",
        "The scheduler does not use these GPUs until the leases are deleted. See kubectl get leases.",
        Firing({_metric("foreign_leases"): "1x90"}, 80),
        {_metric("foreign_leases"): "1x30 0x60"},
        "1h",
    ),
    Alert(
        "GpuAllocatedTwice",
        "max(gpufleet_scheduler_overlapping_gpus{<<scheduler>>}) > 0",
        "critical",
        "A GPU is allocated to two holders",
        "kube-scheduler has allocated a device of a node on which GpuClaims are served. Events on both pods name "
        "it. Keep such nodes for one of them (docs/delivery.md).",
        Firing({_metric("overlapping_gpus"): "1x5"}, 3),
        {_metric("overlapping_gpus"): "0x5"},
    ),
    Alert(
        "GpuQueueBudgetNearlyUsed",
        "max by (queue) (gpufleet_scheduler_queue_budget_used_ratio{<<scheduler>>}) >= 0.8",
        "warning",
        "GpuQueue {{ $labels.queue }} has used {{ $value | humanizePercentage }} of its budget",
        "When it is used up, new pods of the queue wait, and with a hard budget running ones end. See kubectl get gq.",
        Firing(
            {_metric("queue_budget_used_ratio", ',queue="research"'): "0.85x5"},
            3,
            {"queue": "research"},
            value="85%",
        ),
        {_metric("queue_budget_used_ratio", ',queue="research"'): "0.5x5"},
    ),
    Alert(
        "GpuQueueBudgetUsedUp",
        "max by (queue) (gpufleet_scheduler_queue_budget_used_ratio{<<scheduler>>}) >= 1",
        "critical",
        "GpuQueue {{ $labels.queue }} has used up its budget",
        "New pods of the queue wait until the next period, or get only idle GPUs. See kubectl get gq.",
        Firing({_metric("queue_budget_used_ratio", ',queue="research"'): "1.02x5"}, 3, {"queue": "research"}),
        {_metric("queue_budget_used_ratio", ',queue="research"'): "0.95x5"},
    ),
    Alert(
        "GpuQueueUseNotRead",
        "max(gpufleet_scheduler_use_age_seconds{<<scheduler>>}) > 900",
        "warning",
        "The scheduler can't read the use of namespaces from the gpufleet server",
        "Shares and budgets of GpuQueues rest on the last reading and on what the scheduler has seen since.",
        Firing({_metric("use_age_seconds"): "1200x5"}, 3),
        {_metric("use_age_seconds"): "30x5"},
    ),
)
