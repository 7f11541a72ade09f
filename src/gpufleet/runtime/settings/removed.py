"""Settings of earlier versions whose values are built in now.

A settings file, an environment variable or `--set` that names one of them is accepted with a warning, so that an
upgrade does not stop a program that runs well.
"""

REMOVED = {
    "accounting.missing_value": "(none)",
    "agent.heartbeat": "10m",
    "agent.lease_check": "2m",
    "agent.max_processes": "256",
    "devices.ecc_threshold": "0",
    "docker.refresh": "30s",
    "docker.timeout": "10s",
    "kubernetes.burst": "2 × kubernetes.requests_per_second",
    "kubernetes.max_objects": "500000",
    "kubernetes.max_response_bytes": "67108864",
    "kubernetes.timeout": "15s",
    "local.refresh": "15s",
    "metrics.cache_bytes": "67108864",
    "metrics.detect": "5m",
    "metrics.max_answer_bytes": "134217728",
    "metrics.max_queries": "8",
    "metrics.max_scrapes": "32",
    "repair.flap_window": "1d",
    "scheduler.burst": "2 × scheduler.requests_per_second",
    "scheduler.certificate_lifetime": "90d",
    "scheduler.grace": "30s",
    "scheduler.max_body_bytes": "67108864",
    "scheduler.permit": "10s",
    "server.max_body_bytes": "4194304",
    "server.shutdown_grace": "20s",
    "slurm.max_answer_bytes": "201326592",
    "store.long_read_pool_size": "3",
    "store.long_read_timeout": "store.query_timeout / 2",
    "store.retry_timeout": "10s",
    "training.caller_points_per_minute": "600000",
    "training.points_per_minute": "120000",
    "webhook.drain": "5s",
}
"""The built-in value by the name of the former setting."""


def removal(key: str) -> str:
    """Return the warning for a removed setting."""
    return f"setting {key} is no longer needed; its value {REMOVED[key]} is built in"
