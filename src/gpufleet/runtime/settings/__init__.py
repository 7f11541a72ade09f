"""Settings: frozen groups, read once from flags, environment and `gpufleet.toml`."""

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
from gpufleet.runtime.settings.load import Settings, load_settings

__all__ = [
    "AccountingSettings",
    "AgentSettings",
    "AuthSettings",
    "DemoSettings",
    "DevicesSettings",
    "DockerSettings",
    "KubernetesSettings",
    "LocalSettings",
    "LogSettings",
    "MetricsSettings",
    "SchedulerSettings",
    "ServerSettings",
    "Settings",
    "SlurmSettings",
    "StoreSettings",
    "TrainingSettings",
    "WebhookSettings",
    "load_settings",
]
