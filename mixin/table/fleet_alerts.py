"""Alerts about GPUs, nodes and workloads, from the metrics of the server."""

from mixin.table.rule import Alert, Firing

_GPUS = 'gpufleet_gpus{cluster="west",instance="a",state="%s"}'

ALERTS = (
    Alert(
        "GpuUnhealthy",
        'max by (cluster) (gpufleet_gpus{state="unhealthy"}) > 0',
        "warning",
        "{{ $value }} GPUs of {{ $labels.cluster }} are unhealthy",
        "The dashboard and `kubectl get gns` show which GPUs, since when and why.",
        Firing({_GPUS % "unhealthy": "2x30"}, 20, {"cluster": "west"}, "2"),
        {_GPUS % "unhealthy": "2x3 0x30"},
        "5m",
    ),
    Alert(
        "GpuNodeFaulty",
        'max by (cluster) (gpufleet_nodes{state="faulty"}) > 0',
        "warning",
        "{{ $value }} GPU nodes of {{ $labels.cluster }} are faulty",
        "They are not ready, tainted, or have an unhealthy GPU. Their GPUs are not allocated.",
        Firing({'gpufleet_nodes{cluster="west",state="faulty"}': "1x30"}, 20, {"cluster": "west"}, "1"),
        {'gpufleet_nodes{cluster="west",state="faulty"}': "1x10 0x20"},
        "15m",
    ),
    Alert(
        "GpuNodesFaultyMany",
        'sum by (cluster) (max by (cluster, state) (gpufleet_nodes{state="faulty"})) '
        "/ sum by (cluster) (max by (cluster, state) (gpufleet_nodes)) > 0.1",
        "critical",
        "{{ $value | humanizePercentage }} of the GPU nodes of {{ $labels.cluster }} are faulty",
        "A common cause is likely: a network, a power feed, a driver update or a taint on all nodes.",
        Firing(
            {
                'gpufleet_nodes{cluster="west",state="faulty"}': "2x30",
                'gpufleet_nodes{cluster="west",state="busy"}': "6x30",
            },
            20,
            {"cluster": "west"},
            "25%",
        ),
        {
            'gpufleet_nodes{cluster="west",state="faulty"}': "1x30",
            'gpufleet_nodes{cluster="west",state="busy"}': "11x30",
        },
        "10m",
    ),
    Alert(
        "GpusHeldIdle",
        'min by (cluster) (min_over_time(gpufleet_gpus{state="idle"}[<<idleAfter>>])) > 0',
        "info",
        "{{ $value }} or more GPUs of {{ $labels.cluster }} were allocated but idle for <<idleAfter>>",
        "The waste report lists the workloads that hold them.",
        Firing({_GPUS % "idle": "3x90"}, 80, {"cluster": "west"}, "3"),
        {_GPUS % "idle": "3x60 0 3x29"},
    ),
    Alert(
        "GpusMostlyIdle",
        'max by (cluster) (gpufleet_gpus{state="idle"}) '
        '/ (max by (cluster) (gpufleet_gpus{state="allocated"}) > 0) > 0.5',
        "warning",
        "{{ $value | humanizePercentage }} of the allocated GPUs of {{ $labels.cluster }} are idle",
        "Many workloads stopped computing at once: storage, network or a shared dependency may be down.",
        Firing(
            {_GPUS % "idle": "60x90", _GPUS % "allocated": "100x90"},
            80,
            {"cluster": "west"},
            "60%",
        ),
        {_GPUS % "idle": "20x90", _GPUS % "allocated": "100x90"},
        "1h",
    ),
    Alert(
        "GpuFleetFull",
        'max by (cluster) (gpufleet_gpus{state="schedulable_allocated"}) '
        '/ (max by (cluster) (gpufleet_gpus{state="schedulable"}) > 0) > 0.97 '
        'and on (cluster) sum by (cluster) (max by (cluster, namespace) (gpufleet_namespace_gpus{state="pending"})) > 0',
        "info",
        "{{ $value | humanizePercentage }} of the schedulable GPUs of {{ $labels.cluster }} are allocated and workloads wait",
        "New workloads start only when others end. The waste report shows GPUs that could be freed.",
        Firing(
            {
                _GPUS % "schedulable_allocated": "100x90",
                _GPUS % "schedulable": "100x90",
                'gpufleet_namespace_gpus{cluster="west",namespace="nlp",state="pending"}': "8x90",
            },
            80,
            {"cluster": "west"},
            "100%",
        ),
        {
            _GPUS % "schedulable_allocated": "100x90",
            _GPUS % "schedulable": "100x90",
            'gpufleet_namespace_gpus{cluster="west",namespace="nlp",state="pending"}': "0x90",
        },
        "1h",
    ),
    Alert(
        "GpusFreeWhileWorkloadsWait",
        'sum by (cluster) (max by (cluster, namespace) (gpufleet_namespace_gpus{state="pending"})) > 0 '
        'and on (cluster) max by (cluster) (gpufleet_gpus{state="schedulable"}) '
        '- max by (cluster) (gpufleet_gpus{state="schedulable_allocated"}) '
        '> sum by (cluster) (max by (cluster, namespace) (gpufleet_namespace_gpus{state="pending"}))',
        "warning",
        "Workloads of {{ $labels.cluster }} wait for {{ $value }} GPUs although more are free",
        "The free GPUs have another model, are spread over nodes, or a quota holds the workloads back. "
        "`gpufleet explain` names the reason.",
        Firing(
            {
                _GPUS % "schedulable": "100x150",
                _GPUS % "schedulable_allocated": "60x150",
                'gpufleet_namespace_gpus{cluster="west",namespace="nlp",state="pending"}': "8x150",
            },
            140,
            {"cluster": "west"},
            "8",
        ),
        {
            _GPUS % "schedulable": "100x150",
            _GPUS % "schedulable_allocated": "98x150",
            'gpufleet_namespace_gpus{cluster="west",namespace="nlp",state="pending"}': "8x150",
        },
        "2h",
    ),
    Alert(
        "GpuCapacityLost",
        'max by (cluster) (gpufleet_gpus{state="all"}) '
        '< 0.9 * max by (cluster) (max_over_time(gpufleet_gpus{state="all"}[1d]))',
        "warning",
        "{{ $labels.cluster }} has {{ $value }} GPUs, more than a tenth less than within the last day",
        "Nodes were removed or lost their GPUs. If that was planned, the alert ends after a day.",
        Firing({_GPUS % "all": "100x60 80x60"}, 110, {"cluster": "west"}, "80"),
        {_GPUS % "all": "100x60 95x60"},
        "30m",
    ),
)
