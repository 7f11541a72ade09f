"""Settings: frozen groups, read once from flags, environment and `gpufleet.toml`."""

from gpufleet.settings.groups import (
    AccountingSettings,
    AgentSettings,
    AuthSettings,
    DemoSettings,
    DevicesSettings,
    DockerSettings,
    KubernetesSettings,
    LocalSettings,
    LogSettings,
    MetricsSettings,
    SchedulerSettings,
    ServerSettings,
    SlurmSettings,
    StoreSettings,
    TrainingSettings,
    WebhookSettings,
)
from gpufleet.settings.load import Settings, load_settings

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
