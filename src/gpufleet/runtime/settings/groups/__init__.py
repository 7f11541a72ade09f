"""The groups of settings, in the order of the reference page.

Every value that an operator may want to change is declared in one of these modules, with its default, unit
and purpose. Code gets the group it needs as an argument.
"""

from gpufleet.runtime.settings.groups.accounting import AccountingSettings as AccountingSettings
from gpufleet.runtime.settings.groups.accounting import ReportSettings as ReportSettings
from gpufleet.runtime.settings.groups.agent import AgentSettings as AgentSettings
from gpufleet.runtime.settings.groups.demo import DemoSettings as DemoSettings
from gpufleet.runtime.settings.groups.devices import DevicesSettings as DevicesSettings
from gpufleet.runtime.settings.groups.log import LogSettings as LogSettings
from gpufleet.runtime.settings.groups.metrics import MetricsSettings as MetricsSettings
from gpufleet.runtime.settings.groups.oidc import OidcSettings as OidcSettings
from gpufleet.runtime.settings.groups.repair import AlertSettings as AlertSettings
from gpufleet.runtime.settings.groups.repair import RepairSettings as RepairSettings
from gpufleet.runtime.settings.groups.scheduler import SchedulerSettings as SchedulerSettings
from gpufleet.runtime.settings.groups.server import AuthSettings as AuthSettings
from gpufleet.runtime.settings.groups.server import ServerSettings as ServerSettings
from gpufleet.runtime.settings.groups.sources import DockerSettings as DockerSettings
from gpufleet.runtime.settings.groups.sources import KubernetesSettings as KubernetesSettings
from gpufleet.runtime.settings.groups.sources import LocalSettings as LocalSettings
from gpufleet.runtime.settings.groups.sources import SlurmSettings as SlurmSettings
from gpufleet.runtime.settings.groups.store import StoreSettings as StoreSettings
from gpufleet.runtime.settings.groups.training import TrainingSettings as TrainingSettings
from gpufleet.runtime.settings.groups.webhook import WebhookSettings as WebhookSettings

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
