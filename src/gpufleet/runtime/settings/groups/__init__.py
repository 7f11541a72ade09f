"""The groups of settings, in the order of the reference page.

A name or number that an operator may want to change stands here with its unit and the
reason for its default; code gets the group it needs as an argument and reads nothing else.
"""

from gpufleet.runtime.settings.groups.accounting import AccountingSettings, TrainingSettings
from gpufleet.runtime.settings.groups.processes import AgentSettings, SchedulerSettings, WebhookSettings
from gpufleet.runtime.settings.groups.server import (
    AuthSettings,
    LogSettings,
    MetricsSettings,
    ServerSettings,
    StoreSettings,
)
from gpufleet.runtime.settings.groups.sources import (
    DemoSettings,
    DevicesSettings,
    DockerSettings,
    KubernetesSettings,
    LocalSettings,
    SlurmSettings,
)

GROUPS: dict[str, type] = {
    "server": ServerSettings,
    "auth": AuthSettings,
    "log": LogSettings,
    "store": StoreSettings,
    "metrics": MetricsSettings,
    "accounting": AccountingSettings,
    "training": TrainingSettings,
    "kubernetes": KubernetesSettings,
    "devices": DevicesSettings,
    "demo": DemoSettings,
    "scheduler": SchedulerSettings,
    "slurm": SlurmSettings,
    "docker": DockerSettings,
    "local": LocalSettings,
    "agent": AgentSettings,
    "webhook": WebhookSettings,
}
"""Every group by the name of its table in `gpufleet.toml`."""

CLUSTER_GROUPS = ("metrics", "kubernetes", "accounting", "slurm", "docker", "local")
"""Groups that each cluster may have of its own, as `[clusters.NAME.GROUP]`."""
