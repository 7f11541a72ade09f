"""Settings: frozen groups, read once from flags, environment and `gpufleet.toml`."""

from gpufleet.settings.groups import (
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
)
from gpufleet.settings.load import Settings, load_settings

__all__ = [
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
    "load_settings",
]
