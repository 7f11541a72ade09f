"""What each exporter calls things: one table, and nothing about exporters anywhere else.

A vocabulary says how an exporter names the GPU in its labels, which metrics carry which
quantity, and by what factor its unit becomes ours (`Quantity` fixes those). Where an
exporter renamed a metric both names stand here, the newer first.

The order of `KNOWN_EXPORTERS` is the precedence where two exporters describe the same GPU: our
own agent, then the vendors' exporters, then what wraps `nvidia-smi` or every vendor at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.model.reading import FaultKind, Quantity

MIB = 1024.0**2

NODE_LABELS = (
    "exported_node",
    "node",
    "exported_hostname",
    "hostname",
    "Hostname",
    "exported_instance",
    "instance",
)
"""Labels that name the node, best first. What an exporter itself said arrives as `exported_*`
where the scrape keeps its own labels (`honor_labels: false`); `instance` is cut at its port."""

HOLDER_LABELS = ("namespace", "pod", "container", "pod_uid", "hpc_job", "job_id", "job_user")
"""Labels that name who uses the GPU; each may arrive as `exported_*` too."""


@dataclass(frozen=True)
class Metric:
    """A metric that carries a quantity."""

    name: str
    scale: float = 1.0
    """What its values are multiplied with to get the quantity's unit."""
    ratio: bool = False
    """Named a ratio: 0–1, unless its values turn out to be percent (some releases do that)."""
    counter: bool = False
    """Cumulative, one series per link: the rates of all links are added up."""


@dataclass(frozen=True)
class FaultMetric:
    """A metric that says that something is wrong with a GPU while its value is above 0."""

    name: str
    """May end in `*`: any metric that begins so."""
    kind: FaultKind
    code_label: str = ""
    """Label with the code."""
    code_is_value: bool = False
    zero_is_bad: bool = False
    """The metric says 1 for healthy."""
    fatal_only: bool = False
    """Series with a `severity` count only if that is fatal."""
    unless: str = ""
    """Not read where this better metric is there."""


@dataclass(frozen=True)
class Exporter:
    """How one exporter speaks."""

    name: str
    prefix: str
    index: tuple[str, ...]
    metrics: Mapping[Quantity, tuple[Metric, ...]]
    """Per quantity: the metrics that carry it, best first; a later one fills what an earlier lacks."""
    vendor: str = ""
    """Empty: the model's name tells."""
    uuid: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    any_prefix: bool = False
    """The prefix is the operator's choice; `prefix` is only the usual one."""
    info: str = ""
    """The metric that carries index and model where all others have nothing but the UUID."""
    faults: tuple[FaultMetric, ...] = ()
    processes: Mapping[str, str] = field(default_factory=dict)
    """Metrics of `gpu_memory`, `cpu` and `memory` of a process."""


AGENT = Exporter(
    name="gpufleet",
    prefix="nvidia_gpu_",
    index=("gpu", "gpu_id", "minor_number", "gpu_index", "index"),
    uuid=("uuid", "gpu_uuid", "UUID"),
    model=("gpu_name", "model", "modelName", "name"),
    partition=("gpu_partition_id", "GPU_I_ID"),
    profile=("GPU_I_PROFILE",),
    metrics={
        Quantity.UTILIZATION: (Metric("utilization_percent"),),
        Quantity.MEMORY_USED: (Metric("used_memory_bytes"),),
        Quantity.MEMORY_FREE: (Metric("free_memory_bytes"),),
        Quantity.MEMORY_TOTAL: (Metric("total_memory_bytes"),),
        Quantity.MEMORY_UTILIZATION: (Metric("memory_utilization_percent"),),
        Quantity.TEMPERATURE: (Metric("temperature_celsius"),),
        Quantity.POWER: (Metric("power_watts"),),
        Quantity.POWER_LIMIT: (Metric("power_limit_watts"),),
        Quantity.ENERGY: (Metric("energy_joules_total"),),
    },
    faults=(FaultMetric("xid_errors_total", FaultKind.XID, code_label="xid"),),
    processes={
        "gpu_memory": "process_gpu_memory_bytes",
        "cpu": "process_cpu_percent",
        "memory": "process_memory_percent",
    },
)

DCGM = Exporter(
    name="dcgm",
    vendor="NVIDIA",
    prefix="DCGM_",
    index=("gpu", "device", "minor_number"),
    uuid=("UUID", "uuid"),
    model=("modelName",),
    partition=("GPU_I_ID",),
    profile=("GPU_I_PROFILE",),
    metrics={
        # The engine's activity stands in on MIG instances, for which there is no utilization.
        Quantity.UTILIZATION: (
            Metric("FI_GPU_UTIL_RATIO", 100, ratio=True),
            Metric("FI_DEV_GPU_UTIL"),
            Metric("FI_GR_ENGINE_UTIL_RATIO", 100, ratio=True),
            Metric("FI_PROF_GR_ENGINE_ACTIVE", 100, ratio=True),
        ),
        Quantity.MEMORY_USED: (Metric("FI_FB_USED_BYTES"), Metric("FI_DEV_FB_USED", MIB)),
        Quantity.MEMORY_FREE: (Metric("FI_FB_FREE_BYTES"), Metric("FI_DEV_FB_FREE", MIB)),
        Quantity.MEMORY_RESERVED: (Metric("FI_FB_RESERVED_BYTES"), Metric("FI_DEV_FB_RESERVED", MIB)),
        Quantity.MEMORY_TOTAL: (Metric("FI_FB_CAPACITY_BYTES"), Metric("FI_DEV_FB_TOTAL", MIB)),
        Quantity.TEMPERATURE: (Metric("FI_GPU_TEMP_CELSIUS"), Metric("FI_DEV_GPU_TEMP")),
        Quantity.POWER: (Metric("FI_BOARD_POWER_WATTS"), Metric("FI_DEV_POWER_USAGE")),
        Quantity.POWER_LIMIT: (
            Metric("FI_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
            Metric("FI_DEV_ENFORCED_POWER_LIMIT"),
        ),
        Quantity.ENERGY: (
            Metric("FI_GPU_ENERGY_JOULES_TOTAL"),
            Metric("FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
        ),
        Quantity.TENSOR_ACTIVITY: (
            Metric("FI_TENSOR_UTIL_RATIO", ratio=True),
            Metric("FI_PROF_PIPE_TENSOR_ACTIVE", ratio=True),
        ),
        Quantity.DRAM_ACTIVITY: (
            Metric("FI_DRAM_UTIL_RATIO", ratio=True),
            Metric("FI_PROF_DRAM_ACTIVE", ratio=True),
        ),
        Quantity.SM_ACTIVITY: (
            Metric("FI_SM_UTIL_RATIO", ratio=True),
            Metric("FI_PROF_SM_ACTIVE", ratio=True),
        ),
        Quantity.FABRIC_SENT: (Metric("FI_PROF_NVLINK_TX_BYTES"),),
        Quantity.FABRIC_RECEIVED: (Metric("FI_PROF_NVLINK_RX_BYTES"),),
        # Typed a counter, but a rate in MB/s.
        Quantity.FABRIC_TRAFFIC: (Metric("FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1e6),),
    },
    faults=(
        FaultMetric("EXP_XID_ERRORS_COUNT", FaultKind.XID, code_label="xid"),
        # A gauge of the last code that never clears: the counter above is better.
        FaultMetric("FI_XID_ERROR", FaultKind.XID, code_is_value=True, unless="EXP_XID_ERRORS_COUNT"),
        FaultMetric("FI_DEV_XID_ERRORS", FaultKind.XID, code_is_value=True, unless="EXP_XID_ERRORS_COUNT"),
        FaultMetric("FI_DEV_ECC_DBE_VOL_TOTAL", FaultKind.ECC_UNCORRECTED),
        FaultMetric("FI_DEV_ROW_REMAP_FAILURE", FaultKind.ROW_REMAP_FAILED),
    ),
)

AMD = Exporter(
    name="amd",
    vendor="AMD",
    prefix="",
    any_prefix=True,
    index=("gpu_id",),
    uuid=("gpu_uuid",),
    model=("card_model", "card_series"),
    partition=("gpu_partition_id",),
    profile=("gpu_compute_partition_type",),
    metrics={
        Quantity.UTILIZATION: (Metric("gpu_gfx_activity"),),
        # Documented as MB; the driver divides by 1024², so that 192 GiB read as 196,592.
        Quantity.MEMORY_USED: (Metric("gpu_used_vram", MIB),),
        Quantity.MEMORY_FREE: (Metric("gpu_free_vram", MIB),),
        Quantity.MEMORY_TOTAL: (Metric("gpu_total_vram", MIB),),
        Quantity.TEMPERATURE: (Metric("gpu_junction_temperature"), Metric("gpu_edge_temperature")),
        Quantity.POWER: (
            Metric("gpu_package_power"),
            Metric("gpu_average_package_power"),
            Metric("gpu_power_usage"),
        ),
        Quantity.ENERGY: (Metric("gpu_energy_consumed", 1e-6),),
        Quantity.TENSOR_ACTIVITY: (Metric("gpu_prof_tensor_active_percent", 1e-2),),
        Quantity.SM_ACTIVITY: (Metric("gpu_prof_sm_active", 1e-2),),
        Quantity.FABRIC_SENT: (Metric("gpu_xgmi_link_tx", 1024, counter=True),),
        Quantity.FABRIC_RECEIVED: (Metric("gpu_xgmi_link_rx", 1024, counter=True),),
    },
    faults=(
        FaultMetric("gpu_ecc_uncorrect_*", FaultKind.ECC_UNCORRECTED),
        FaultMetric("gpu_afid_errors", FaultKind.FATAL_EVENT, code_is_value=True, fatal_only=True),
        FaultMetric("gpu_health", FaultKind.UNHEALTHY, zero_is_bad=True),
    ),
)

NVIDIA_SMI = Exporter(
    name="nvidia-smi",
    vendor="NVIDIA",
    prefix="nvidia_smi_",
    index=("index", "gpu"),
    uuid=("uuid",),
    model=("name",),
    info="gpu_info",
    metrics={
        Quantity.UTILIZATION: (Metric("utilization_gpu_ratio", 100, ratio=True),),
        Quantity.MEMORY_USED: (Metric("memory_used_bytes"),),
        Quantity.MEMORY_FREE: (Metric("memory_free_bytes"),),
        Quantity.MEMORY_TOTAL: (Metric("memory_total_bytes"),),
        Quantity.TEMPERATURE: (Metric("temperature_gpu"),),
        Quantity.POWER: (Metric("power_draw_watts"),),
        Quantity.POWER_LIMIT: (Metric("enforced_power_limit_watts"),),
        Quantity.ENERGY: (Metric("energy_joules_total"),),
    },
    faults=(
        FaultMetric("xid_errors_total", FaultKind.XID, code_label="xid"),
        FaultMetric("ecc_errors_uncorrected_volatile_*", FaultKind.ECC_UNCORRECTED),
        FaultMetric("gpu_recovery_action", FaultKind.RECOVERY_ACTION, code_is_value=True),
    ),
    processes={"gpu_memory": "compute_app_used_memory_bytes"},
)

ALL_SMI = Exporter(
    name="all-smi",
    prefix="all_smi_",
    # Its label `gpu` is the model.
    index=("gpu_index", "index", "device_id"),
    uuid=("gpu_uuid", "uuid", "device_uuid"),
    model=("gpu",),
    metrics={
        Quantity.UTILIZATION: (Metric("gpu_utilization"),),
        Quantity.MEMORY_USED: (Metric("gpu_memory_used_bytes"),),
        Quantity.MEMORY_TOTAL: (Metric("gpu_memory_total_bytes"),),
        Quantity.TEMPERATURE: (Metric("gpu_temperature_celsius"),),
        Quantity.POWER: (Metric("gpu_power_consumption_watts"),),
        Quantity.POWER_LIMIT: (Metric("gpu_power_limit_current_watts"),),
    },
    processes={"gpu_memory": "process_memory_used_bytes"},
)

KNOWN_EXPORTERS = (AGENT, DCGM, AMD, NVIDIA_SMI, ALL_SMI)
"""Every vocabulary, in order of precedence."""

PROCESS_LABELS = ("pid", "process_name", "name", "user", "command")
"""Labels that describe a process, in the spellings that there are."""
