"""Settings: frozen groups, read once from flags, environment and `gpufleet.toml`."""

from gpufleet.settings.groups import (
    AuthSettings,
    DemoSettings,
    DevicesSettings,
    KubernetesSettings,
    LogSettings,
    MetricsSettings,
    SchedulerSettings,
    ServerSettings,
    StoreSettings,
)
from gpufleet.settings.load import Settings, load_settings

__all__ = [
    "AuthSettings",
    "DemoSettings",
    "DevicesSettings",
    "KubernetesSettings",
    "LogSettings",
    "MetricsSettings",
    "SchedulerSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "load_settings",
]
