"""Settings: frozen groups, read once from flags, environment and `gpufleet.toml`."""

from gpufleet.settings.groups import (
    AuthSettings,
    DevicesSettings,
    KubernetesSettings,
    LogSettings,
    MetricsSettings,
    ServerSettings,
    StoreSettings,
)
from gpufleet.settings.load import Settings, load_settings

__all__ = [
    "AuthSettings",
    "DevicesSettings",
    "KubernetesSettings",
    "LogSettings",
    "MetricsSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "load_settings",
]
