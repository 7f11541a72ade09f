"""The labels and metrics of every known exporter. Nothing else in the code depends on one exporter.

An `ExporterDefinition` defines which labels identify the GPU, which metrics hold which quantity, and the factor
that converts to the unit of `Quantity`. If an exporter renamed a metric, both names are listed, the
newer first.

The order of `KNOWN_EXPORTERS` is the precedence if several exporters describe the same GPU: our own
agent, then the vendors' exporters, then wrappers of `nvidia-smi` or of several vendors.
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
"""Labels that name the node, best first. The exporter's own labels arrive as `exported_*` if the scrape
config has `honor_labels: false`. The port of `instance` is removed."""

HOLDER_LABELS = ("namespace", "pod", "container", "pod_uid", "hpc_job", "job_id", "job_user")
"""Labels that name who uses the GPU; each may also arrive as `exported_*`."""


@dataclass(frozen=True)
class Metric:
    """A metric that holds a quantity."""

    name: str
    scale: float = 1.0
    """The factor that converts its values to the quantity's unit."""
    ratio: bool = False
    """Named a ratio: 0–1, unless its values turn out to be percent, as in some releases."""
    counter: bool = False
    """Cumulative with one series per link: the rates of all links are summed."""


@dataclass(frozen=True)
class FaultMetric:
    """A metric that reports a fault of a GPU while its value is above 0."""

    name: str
    """May end in `*`: all metrics with that prefix."""
    kind: FaultKind
    code_label: str = ""
    """The label that holds the fault code."""
    code_is_value: bool = False
    zero_is_bad: bool = False
    """The metric is 1 for a healthy GPU."""
    fatal_only: bool = False
    """Series count only if their `severity` is fatal."""
    unless: str = ""
    """Not read if this better metric exists."""


@dataclass(frozen=True)
class ExporterDefinition:
    """The definition of one exporter."""

    name: str
    prefix: str
    index: tuple[str, ...]
    metrics: Mapping[Quantity, tuple[Metric, ...]]
    """The metrics of each quantity, best first; a later one fills gaps of an earlier one."""
    vendor: str = ""
    """If empty, it is guessed from the model."""
    uuid: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
    any_prefix: bool = False
    """The operator chooses the prefix; `prefix` is only the default."""
    info: str = ""
    """The metric with index and model, if all others have only the UUID."""
    faults: tuple[FaultMetric, ...] = ()
    processes: Mapping[str, str] = field(default_factory=dict)
    """Metrics of `gpu_memory`, `cpu` and `memory` of a process."""


AGENT = ExporterDefinition(
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
        Quantity.SM_CLOCK: (Metric("sm_clock_hertz"),),
        Quantity.ENERGY: (Metric("energy_joules_total"),),
    },
    faults=(FaultMetric("xid_errors_total", FaultKind.XID, code_label="xid"),),
    processes={
        "gpu_memory": "process_gpu_memory_bytes",
        "cpu": "process_cpu_percent",
        "memory": "process_memory_percent",
    },
)

DCGM = ExporterDefinition(
    name="dcgm",
    vendor="NVIDIA",
    prefix="DCGM_",
    index=("gpu", "device", "minor_number"),
    uuid=("UUID", "uuid"),
    model=("modelName",),
    partition=("GPU_I_ID",),
    profile=("GPU_I_PROFILE",),
    metrics={
        # MIG instances have no utilization, only the activity of the engine.
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
        Quantity.SM_CLOCK: (Metric("FI_DEV_SM_CLOCK", 1e6),),
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
        # Has the type counter, but is a rate in MB/s.
        Quantity.FABRIC_TRAFFIC: (Metric("FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1e6),),
    },
    faults=(
        FaultMetric("EXP_XID_ERRORS_COUNT", FaultKind.XID, code_label="xid"),
        # A gauge of the last code that never clears; the counter above is better.
        FaultMetric("FI_XID_ERROR", FaultKind.XID, code_is_value=True, unless="EXP_XID_ERRORS_COUNT"),
        FaultMetric("FI_DEV_XID_ERRORS", FaultKind.XID, code_is_value=True, unless="EXP_XID_ERRORS_COUNT"),
        FaultMetric("FI_DEV_ECC_DBE_VOL_TOTAL", FaultKind.ECC_UNCORRECTED),
        FaultMetric("FI_DEV_ROW_REMAP_FAILURE", FaultKind.ROW_REMAP_FAILED),
    ),
)

AMD = ExporterDefinition(
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
        # Documented as MB, but the driver divides by 1024²: 192 GiB are 196,592.
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

NVIDIA_SMI = ExporterDefinition(
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
        Quantity.SM_CLOCK: (Metric("clocks_current_sm_clock_hz"),),
        Quantity.ENERGY: (Metric("energy_joules_total"),),
    },
    faults=(
        FaultMetric("xid_errors_total", FaultKind.XID, code_label="xid"),
        FaultMetric("ecc_errors_uncorrected_volatile_*", FaultKind.ECC_UNCORRECTED),
        FaultMetric("gpu_recovery_action", FaultKind.RECOVERY_ACTION, code_is_value=True),
    ),
    processes={"gpu_memory": "compute_app_used_memory_bytes"},
)

ALL_SMI = ExporterDefinition(
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
        Quantity.SM_CLOCK: (Metric("gpu_frequency_mhz", 1e6),),
    },
    processes={"gpu_memory": "process_memory_used_bytes"},
)

KNOWN_EXPORTERS = (AGENT, DCGM, AMD, NVIDIA_SMI, ALL_SMI)
"""In order of precedence."""

PROCESS_LABELS = ("pid", "process_name", "name", "user", "command")
"""Labels that describe a process, in all spellings."""
