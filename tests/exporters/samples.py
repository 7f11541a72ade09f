"""A small server with the metrics of every exporter, for a real Prometheus to scrape."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GIB = 1024**3

AGENT = """
nvidia_gpu_utilization_percent{node="agent-1",gpu="0",gpu_name="NVIDIA A100"} 75.5
nvidia_gpu_utilization_percent{hostname="agent-2",gpu_id="1",gpu_name="NVIDIA A100"} 0
nvidia_gpu_used_memory_bytes{node="agent-1",gpu="0",gpu_name="NVIDIA A100"} 8589934592
nvidia_gpu_free_memory_bytes{node="agent-1",gpu="0",gpu_name="NVIDIA A100"} 25769803776
nvidia_gpu_total_memory_bytes{node="agent-1",gpu="0",gpu_name="NVIDIA A100"} 34359738368
nvidia_gpu_temperature_celsius{node="agent-1",gpu="0",gpu_name="NVIDIA A100"} 65
nvidia_gpu_temperature_celsius{hostname="agent-2",gpu_id="1",gpu_name="NVIDIA A100"} NaN
nvidia_gpu_process_gpu_memory_bytes{node="agent-1",gpu="0",pid="1234",process_name="python",user="alice",command="python train.py"} 1073741824
nvidia_gpu_process_cpu_percent{node="agent-1",gpu="0",pid="1234",process_name="python",user="alice",command="python train.py"} 8.5
nvidia_gpu_process_memory_percent{node="agent-1",gpu="0",pid="1234",process_name="python",user="alice",command="python train.py"} 15.2
nvidia_gpu_process_gpu_memory_bytes{node="agent-1",gpu="0",pid="99",process_name="nvtop",user="root",command="nvtop"} 0
"""

_OLD = 'Hostname="dcgm-1",modelName="NVIDIA H100",gpu="{gpu}",device="nvidia{gpu}",UUID="GPU-0000000{gpu}-0000-0000-0000-000000000000"'
_OLD_0, _OLD_1, _OLD_2 = (_OLD.format(gpu=gpu) for gpu in range(3))

DCGM = f"""
DCGM_FI_DEV_GPU_UTIL{{{_OLD_0},namespace="team-a",pod="train-0",container="main"}} 90
DCGM_FI_DEV_GPU_UTIL{{{_OLD_0},namespace="team-b",pod="serve-0",container="main"}} 90
DCGM_FI_DEV_GPU_UTIL{{{_OLD_1}}} 0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_OLD_0}}} 0.4
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_OLD_2},GPU_I_ID="3",GPU_I_PROFILE="1g.10gb"}} 0.25
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_OLD_0}}} 0.125
DCGM_FI_PROF_DRAM_ACTIVE{{{_OLD_0}}} 0.5
DCGM_FI_DEV_FB_USED{{{_OLD_0}}} 1024
DCGM_FI_DEV_FB_FREE{{{_OLD_0}}} 2048
DCGM_FI_DEV_FB_RESERVED{{{_OLD_0}}} 1024
DCGM_FI_DEV_GPU_TEMP{{{_OLD_0}}} 44
DCGM_FI_DEV_GPU_TEMP{{{_OLD_1}}} 41
DCGM_FI_DEV_POWER_USAGE{{{_OLD_0}}} 512.5
DCGM_FI_DEV_POWER_USAGE{{{_OLD_1}}} 9223372036854775794
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_OLD_0}}} 5000
DCGM_FI_DEV_XID_ERRORS{{{_OLD_0}}} 0
DCGM_FI_DEV_XID_ERRORS{{{_OLD_1}}} 79
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{_OLD_1}}} 2
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{_OLD_0}}} 3
"""

_NEW = 'hostname="dcgm-9",modelName="NVIDIA B200",gpu="0",UUID="GPU-99999999-0000-0000-0000-000000000000"'

DCGM_NEW = f"""
DCGM_FI_GPU_UTIL_RATIO{{{_NEW},pod="infer-0",namespace="team-c",container="vllm",pod_uid="u-1"}} 0.5
DCGM_FI_FB_USED_BYTES{{{_NEW}}} 1073741824
DCGM_FI_FB_CAPACITY_BYTES{{{_NEW}}} 4294967296
DCGM_FI_GPU_TEMP_CELSIUS{{{_NEW}}} 50
DCGM_FI_BOARD_POWER_WATTS{{{_NEW}}} 700
DCGM_FI_BOARD_POWER_LIMIT_ENFORCED_WATTS{{{_NEW}}} 1000
DCGM_FI_GPU_ENERGY_JOULES_TOTAL{{{_NEW}}} 12.5
DCGM_FI_SM_UTIL_RATIO{{{_NEW}}} 0.75
DCGM_EXP_XID_ERRORS_COUNT{{{_NEW},xid="48"}} 1
DCGM_FI_XID_ERROR{{{_NEW}}} 13
"""

_AMD = 'hostname="amd-1",gpu_id="4",card_model="MI300X",serial_number="s",gpu_partition_id="{part}",gpu_uuid="a-4",job_id="77",job_user="bob",job_partition="gpu"'
_AMD_0, _AMD_1 = _AMD.format(part=0), _AMD.format(part=1)

AMD = f"""
amd_gpu_gfx_activity{{{_AMD_0}}} 33
amd_gpu_gfx_activity{{{_AMD_1}}} 65535
amd_gpu_used_vram{{{_AMD_0}}} 512
amd_gpu_free_vram{{{_AMD_0}}} 512
amd_gpu_total_vram{{{_AMD_0}}} 1024
amd_gpu_junction_temperature{{{_AMD_0}}} 61
amd_gpu_edge_temperature{{{_AMD_0}}} 55
amd_gpu_average_package_power{{{_AMD_0}}} 300
amd_gpu_energy_consumed{{{_AMD_0}}} 2500000
amd_gpu_ecc_uncorrect_umc{{{_AMD_0}}} 1
amd_gpu_ecc_uncorrect_gfx{{{_AMD_0}}} 0
amd_gpu_afid_errors{{{_AMD_0},severity="fatal",afid_index="0"}} 55
amd_gpu_afid_errors{{{_AMD_0},severity="non-fatal",afid_index="1"}} 56
amd_gpu_health{{{_AMD_0}}} 0
"""

_SMI = 'uuid="df6e7a7c-7314-46f8-abc4-b88b36dcf3aa"'

NVIDIA_SMI = f"""
nvidia_smi_gpu_info{{{_SMI},index="6",name="NVIDIA RTX 4090",driver_version="550"}} 1
nvidia_smi_utilization_gpu_ratio{{{_SMI}}} 0.07
nvidia_smi_memory_used_bytes{{{_SMI}}} 1073741824
nvidia_smi_memory_free_bytes{{{_SMI}}} 3221225472
nvidia_smi_memory_total_bytes{{{_SMI}}} 4294967296
nvidia_smi_temperature_gpu{{{_SMI}}} 36
nvidia_smi_power_draw_watts{{{_SMI}}} 90.5
nvidia_smi_enforced_power_limit_watts{{{_SMI}}} 450
nvidia_smi_xid_errors_total{{{_SMI},xid="31"}} 2
nvidia_smi_gpu_recovery_action{{{_SMI}}} 1
nvidia_smi_compute_app_used_memory_bytes{{{_SMI},pid="4242",process_name="/usr/bin/python3"}} 536870912
"""

_ALL = 'gpu="Apple M9",instance="allsmi-1",gpu_uuid="m-1",gpu_index="2"'

ALL_SMI = f"""
all_smi_gpu_utilization{{{_ALL}}} 12
all_smi_gpu_memory_used_bytes{{{_ALL}}} 1073741824
all_smi_gpu_memory_total_bytes{{{_ALL}}} 4294967296
all_smi_gpu_temperature_celsius{{{_ALL}}} 40
all_smi_gpu_power_consumption_watts{{{_ALL}}} 30
all_smi_gpu_power_limit_current_watts{{{_ALL}}} 60
all_smi_process_memory_used_bytes{{gpu="Apple M9",instance="allsmi-1",gpu_index="2",pid="7",name="llama",user="carol",command="llama serve"}} 4096
"""

CLUSTER = """
kubelet_volume_stats_capacity_bytes{namespace="a",persistentvolumeclaim="data",node="n1"} 1000
kubelet_volume_stats_capacity_bytes{namespace="a",persistentvolumeclaim="data",node="n2"} 1000
kubelet_volume_stats_capacity_bytes{namespace="b",persistentvolumeclaim="data",node="n2"} 500
kubelet_volume_stats_used_bytes{namespace="a",persistentvolumeclaim="data",node="n1"} 400
kubelet_volume_stats_used_bytes{namespace="a",persistentvolumeclaim="data",node="n2"} 400
kubelet_volume_stats_used_bytes{namespace="b",persistentvolumeclaim="data",node="n2"} 100
kubelet_volume_stats_available_bytes{namespace="a",persistentvolumeclaim="data",node="n1"} 600
kubelet_volume_stats_available_bytes{namespace="b",persistentvolumeclaim="data",node="n2"} 400
node_infiniband_state_id{device="mlx5_0",port="1",node="n1"} 4
node_infiniband_state_id{device="mlx5_1",port="1",node="n1"} 1
node_infiniband_state_id{device="mlx5_0",port="1",node="n2"} 4
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1",node="n1"} 50000000000
node_infiniband_rate_bytes_per_second{device="mlx5_1",port="1",node="n1"} 50000000000
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1",node="n2"} 50000000000
"""

FILESYSTEMS = """
node_filesystem_size_bytes{node="n1",device="/dev/sda1",fstype="ext4",mountpoint="/"} 100
node_filesystem_size_bytes{node="n1",device="/dev/sda1",fstype="ext4",mountpoint="/var/lib/kubelet"} 100
node_filesystem_size_bytes{node="n2",device="/dev/sda1",fstype="ext4",mountpoint="/"} 100
node_filesystem_size_bytes{node="n1",device="nas:/home",fstype="nfs4",mountpoint="/home"} 1000
node_filesystem_size_bytes{node="n2",device="nas:/home",fstype="nfs4",mountpoint="/home"} 1000
node_filesystem_size_bytes{node="n2",device="tmpfs",fstype="tmpfs",mountpoint="/run"} 7
node_filesystem_avail_bytes{node="n1",device="/dev/sda1",fstype="ext4",mountpoint="/"} 40
node_filesystem_avail_bytes{node="n1",device="/dev/sda1",fstype="ext4",mountpoint="/var/lib/kubelet"} 40
node_filesystem_avail_bytes{node="n2",device="/dev/sda1",fstype="ext4",mountpoint="/"} 60
node_filesystem_avail_bytes{node="n1",device="nas:/home",fstype="nfs4",mountpoint="/home"} 500
node_filesystem_avail_bytes{node="n2",device="nas:/home",fstype="nfs4",mountpoint="/home"} 500
node_filesystem_avail_bytes{node="n2",device="tmpfs",fstype="tmpfs",mountpoint="/run"} 7
"""

PAGES = {
    "gpufleet": AGENT,
    "dcgm": DCGM,
    "dcgm-new": DCGM_NEW,
    "amd": AMD,
    "nvidia-smi": NVIDIA_SMI,
    "all-smi": ALL_SMI,
}

TARGET_LABELS: Mapping[str, Mapping[str, str]] = {
    # As a PodMonitor does it: the target's own pod is a label of every series.
    "dcgm": {"namespace": "monitoring", "pod": "dcgm-exporter-x"},
    "amd": {"namespace": "monitoring", "pod": "amd-exporter-x"},
}


@contextmanager
def exporter(pages: Mapping[str, str]) -> Iterator[str]:
    """The `host:port` of an exporter with these pages, each at the path of its name."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path.strip("/"), "").lstrip().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scrape_config(target: str, pages: Mapping[str, str], honor_labels: bool = False) -> str:
    """A configuration that scrapes every page once a second."""
    jobs = []
    for name in pages:
        labels = "".join(f", {key}: {value}" for key, value in TARGET_LABELS.get(name, {}).items())
        jobs.append(
            f"- job_name: {name}\n  metrics_path: /{name}\n  honor_labels: {str(honor_labels).lower()}\n"
            f"  static_configs: [{{targets: ['{target}'], labels: {{from: test{labels}}}}}]\n"
        )
    return "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n" + "".join(jobs)
