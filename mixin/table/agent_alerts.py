"""Alerts about single GPUs and the agents that watch them."""

from mixin.table.rule import Alert, Firing

_GPU = 'nvidia_gpu_%s{node="a",gpu="3"%s}'
_ON_NODE = {"node": "a", "gpu": "3"}

ALERTS = (
    Alert(
        "GpuAgentDown",
        "up{<<agent>>} == 0",
        "warning",
        "The GPU agent {{ $labels.instance }} is down",
        "Health and metrics of this node's GPUs are unknown.",
        Firing(
            {'up{job="gpu-agent",instance="a:9401"}': "0x30"},
            20,
            {"job": "gpu-agent", "instance": "a:9401"},
        ),
        {'up{job="gpu-agent",instance="a:9401"}': "1x30"},
        "5m",
    ),
    Alert(
        "GpuXid",
        # The first XID of a kind starts a new series, which increase() does not count.
        "sum by (node, gpu, xid) (increase(nvidia_gpu_xid_errors_total[10m])) > 0 "
        "or sum by (node, gpu, xid) (nvidia_gpu_xid_errors_total unless nvidia_gpu_xid_errors_total offset 10m) > 0",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} reported XID {{ $labels.xid }}",
        "kubectl get gns {{ $labels.node }} -o yaml shows whether the GPU is unhealthy.",
        Firing({_GPU % ("xid_errors_total", ',xid="48"'): "_x29 1x29"}, 32, {**_ON_NODE, "xid": "48"}),
        {_GPU % ("xid_errors_total", ',xid="48"'): "1x60"},
    ),
    Alert(
        "GpuEccUncorrected",
        "sum by (node, gpu) (increase(nvidia_gpu_ecc_uncorrected_errors_total[1h])) > 0",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} had uncorrectable memory errors",
        "Results of the workload on it may be wrong. Reset the GPU; replace it if the errors come back.",
        Firing({_GPU % ("ecc_uncorrected_errors_total", ""): "0x30 1x30"}, 40, _ON_NODE),
        {_GPU % ("ecc_uncorrected_errors_total", ""): "4x60"},
    ),
    Alert(
        "GpuEccCorrectedMany",
        "sum by (node, gpu) (increase(nvidia_gpu_ecc_corrected_errors_total[1h])) > 100",
        "info",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} corrected {{ $value | humanize }} memory errors within an hour",
        "No data is wrong, but the memory wears out. Plan a replacement.",
        Firing({_GPU % ("ecc_corrected_errors_total", ""): "0+4x70"}, 65, _ON_NODE, "240"),
        {_GPU % ("ecc_corrected_errors_total", ""): "0 80x70"},
    ),
    Alert(
        "GpuHot",
        "max by (node, gpu) (nvidia_gpu_temperature_celsius) > 88",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} has {{ $value }} °C",
        "It lowers its clocks. Check the cooling of the node and of its rack.",
        Firing({_GPU % ("temperature_celsius", ""): "91x30"}, 20, _ON_NODE, "91"),
        {_GPU % ("temperature_celsius", ""): "91x5 80x25"},
        "10m",
    ),
    Alert(
        "GpuDriverStuck",
        "min by (node, instance) (gpufleet_agent_driver_answers) == 0",
        "critical",
        "The GPU driver on {{ $labels.instance }} does not answer",
        "Running workloads may hang, and the node gets no new ones. Restart the node if the driver does not recover.",
        Firing({'gpufleet_agent_driver_answers{instance="a:9401"}': "0x30"}, 20, {"instance": "a:9401"}),
        {'gpufleet_agent_driver_answers{instance="a:9401"}': "0x3 1x27"},
        "5m",
    ),
    Alert(
        "GpuStatusWritesFail",
        "sum by (instance) (rate(gpufleet_agent_status_failures_total[10m])) > 0",
        "warning",
        "The agent {{ $labels.instance }} can't write its GpuNodeStatus",
        "The scheduler does not learn of changed GPUs. The rights of the agent or the API server are the cause.",
        Firing(
            {'gpufleet_agent_status_failures_total{instance="a:9401"}': "0+1x60"},
            40,
            {"instance": "a:9401"},
        ),
        {'gpufleet_agent_status_failures_total{instance="a:9401"}': "0 1x60"},
        "15m",
    ),
    Alert(
        "GpuPowerCapped",
        "avg_over_time((max by (node, gpu) (nvidia_gpu_power_watts) "
        "/ (max by (node, gpu) (nvidia_gpu_power_limit_watts) > 0))[1h:]) > 0.99",
        "info",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} runs at its power limit",
        "It lowers its clocks to stay below the limit. That is normal under full load; a low limit may be set by mistake.",
        Firing(
            {_GPU % ("power_watts", ""): "699x90", _GPU % ("power_limit_watts", ""): "700x90"}, 80, _ON_NODE
        ),
        {_GPU % ("power_watts", ""): "500x90", _GPU % ("power_limit_watts", ""): "700x90"},
    ),
)
