"""Settings: frozen groups, loaded once from flags, environment variables and `gpufleet.toml`."""

from gpufleet.runtime.settings.groups import *  # noqa: F403
from gpufleet.runtime.settings.load import Settings as Settings
from gpufleet.runtime.settings.load import load_settings as load_settings
