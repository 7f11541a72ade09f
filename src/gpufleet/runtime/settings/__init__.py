"""Settings: frozen groups, loaded once from flags, environment variables and `gpufleet.toml`."""

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
from gpufleet.runtime.settings.load import Settings, load_settings

__all__ = [
    "AccountingSettings",
    "AgentSettings",
    "AlertSettings",
    "AuthSettings",
    "DemoSettings",
    "DevicesSettings",
    "DockerSettings",
    "KubernetesSettings",
    "LocalSettings",
    "LogSettings",
    "MetricsSettings",
    "OidcSettings",
    "RepairSettings",
    "ReportSettings",
    "SchedulerSettings",
    "ServerSettings",
    "Settings",
    "SlurmSettings",
    "StoreSettings",
    "TrainingSettings",
    "WebhookSettings",
    "load_settings",
]
