"""The groups of settings, in the order of the reference page.

Every value that an operator may want to change is declared in one of these modules, with its default, unit
and purpose. Code gets the group it needs as an argument.
"""

from gpufleet.runtime.settings.groups.accounting import AccountingSettings, ReportSettings
from gpufleet.runtime.settings.groups.agent import AgentSettings
from gpufleet.runtime.settings.groups.demo import DemoSettings
from gpufleet.runtime.settings.groups.devices import DevicesSettings
from gpufleet.runtime.settings.groups.log import LogSettings
from gpufleet.runtime.settings.groups.metrics import MetricsSettings
from gpufleet.runtime.settings.groups.oidc import OidcSettings
from gpufleet.runtime.settings.groups.repair import AlertSettings, RepairSettings
from gpufleet.runtime.settings.groups.scheduler import SchedulerSettings
from gpufleet.runtime.settings.groups.server import AuthSettings, ServerSettings
from gpufleet.runtime.settings.groups.sources import (
    DockerSettings,
    KubernetesSettings,
    LocalSettings,
    SlurmSettings,
)
from gpufleet.runtime.settings.groups.store import StoreSettings
from gpufleet.runtime.settings.groups.training import TrainingSettings
from gpufleet.runtime.settings.groups.webhook import WebhookSettings

GROUPS: dict[str, type] = {
    "server": ServerSettings,
    "auth": AuthSettings,
    "oidc": OidcSettings,
    "log": LogSettings,
    "store": StoreSettings,
    "metrics": MetricsSettings,
    "accounting": AccountingSettings,
    "reports": ReportSettings,
    "training": TrainingSettings,
    "kubernetes": KubernetesSettings,
    "devices": DevicesSettings,
    "demo": DemoSettings,
    "scheduler": SchedulerSettings,
    "repair": RepairSettings,
    "alerts": AlertSettings,
    "slurm": SlurmSettings,
    "docker": DockerSettings,
    "local": LocalSettings,
    "agent": AgentSettings,
    "webhook": WebhookSettings,
}
"""Every group by the name of its table in `gpufleet.toml`."""

CLUSTER_GROUPS = ("metrics", "kubernetes", "accounting", "slurm", "docker", "local")
"""Groups that can be set per cluster, as `[clusters.NAME.GROUP]`."""
