"""The metric source that GPU readings come from."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class MetricsSettings:
    """The metric source that GPU readings come from."""

    url: str = setting(
        "",
        "URL of Prometheus, Thanos, Mimir or VictoriaMetrics. Empty: the server reads the agents itself and keeps "
        "readings in the store.",
        flag="--prometheus-url",
        env=["PROMETHEUS_URL"],
    )
    bearer_token_file: Path | None = setting(None, "File with the bearer token for the metric source.")
    username: str = setting("", "User name for basic authentication at the metric source.")
    password_file: Path | None = setting(None, "File with the password for `username`.")
    ca_file: Path | None = setting(None, "CA certificates of the metric source.")
    headers: tuple[str, ...] = setting(
        (), "Additional request headers as `Name: value` (for example a Mimir tenant).", secret=True
    )
    timeout: float = setting(10.0, "Longest time for one query.", unit="s", minimum=0.1)
    scrape_agents: bool = setting(
        True,
        "Read the agents of the chart gpu-scheduler directly if `url` is empty; they are found in the namespace "
        "`kubernetes.lease_namespace`.",
    )
    refresh: float = setting(15.0, "How often the latest readings are fetched.", unit="s", minimum=1)
    retention: float = setting(
        86400.0,
        "How long readings are kept in the store, if there is no metric source.",
        unit="s",
        minimum=3600,
    )
    training_retention: float = setting(
        30 * 86400.0, "How long reported training numbers are kept.", unit="s", minimum=3600
    )
    vocabularies: tuple[str, ...] = setting(
        (),
        "Exporters to read. Empty: all that are detected.",
        choices=["gpufleet", "dcgm", "amd", "nvidia-smi", "all-smi"],
    )
