"""Settings: frozen groups, read once from flags, environment and `gpufleet.toml`."""

from gpufleet.settings.groups.parts import AgentSettings, SchedulerSettings, WebhookSettings
from gpufleet.settings.groups.places import (
    DemoSettings,
    DevicesSettings,
    DockerSettings,
    KubernetesSettings,
    LocalSettings,
    SlurmSettings,
)
from gpufleet.settings.groups.serving import (
    AuthSettings,
    LogSettings,
    MetricsSettings,
    ServerSettings,
    StoreSettings,
)
from gpufleet.settings.groups.usage import AccountingSettings, TrainingSettings
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
