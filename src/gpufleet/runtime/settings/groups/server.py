"""What the server listens on, lets in, logs and keeps."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens and what it lets in."""

    host: str = setting(
        "127.0.0.1", "Address to listen on. Any other than loopback needs authentication.", flag="--host"
    )
    port: int = setting(
        8080, "Port to listen on; 0 takes a free one.", flag="--port", env=["PORT"], minimum=0, maximum=65535
    )
    insecure: bool = setting(False, "Serve other addresses than loopback without login.", flag="--insecure")
    debug: bool = setting(False, "Serve /debug/vars and /debug/pprof on loopback.", flag="--debug")
    cors_origins: tuple[str, ...] = setting(
        (), "Origins whose pages may call the API from a browser.", flag="--cors-origins"
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Names, beside localhost, by which a server on loopback without login may be called "
        "(a reverse proxy's, for one).",
        flag="--hosts",
    )
    max_body_bytes: int = setting(
        4 * 1024 * 1024, "Largest request body; larger ones get a 413.", unit="bytes", minimum=1024
    )
    request_timeout: float = setting(
        30.0,
        "Longest time that one request may take before it is answered with a 503.",
        unit="s",
        minimum=0.1,
    )
    max_requests: int = setting(512, "Requests in work at once; more get a 503 with Retry-After.", minimum=1)
    shutdown_grace: float = setting(
        20.0, "Time that requests in flight get to finish after SIGTERM.", unit="s", minimum=0
    )


@dataclass(frozen=True)
class AuthSettings:
    """Who may call the API."""

    tokens_file: Path | None = setting(
        None,
        "File of hashed bearer tokens with their roles; read again when it changes.",
        flag="--tokens-file",
    )
    token_review: bool = setting(
        False, "Ask the Kubernetes API who a bearer token belongs to (TokenReview).", flag="--token-review"
    )
    operators: tuple[str, ...] = setting(
        (), "Kubernetes users and groups with the role operator; all others that log in are viewers."
    )
    review_cache: float = setting(60.0, "How long an answer of TokenReview is trusted.", unit="s", minimum=0)
    workload_key_file: Path | None = setting(
        None,
        "Key that the tokens of workloads are signed with. Without one, a file in `store.data` is made; "
        "servers of one database need the same.",
    )


@dataclass(frozen=True)
class LogSettings:
    """What is logged, and how."""

    level: str = setting(
        "info",
        "Least severe level that is logged.",
        flag="--log-level",
        env=["LOG_LEVEL"],
        choices=["debug", "info", "warning", "error"],
    )
    format: str = setting(
        "auto",
        "console for people, json for collectors; auto picks console at a terminal.",
        flag="--log-format",
        choices=["auto", "console", "json"],
    )


@dataclass(frozen=True)
class StoreSettings:
    """Where accounting and history are kept."""

    url: str = setting(
        "",
        "PostgreSQL 14 or newer, as postgresql://user@host/database. Empty: an embedded server in `data`.",
        env=["DATABASE_URL"],
        secret=True,
    )
    data: Path = setting(
        Path("gpufleet-data"),
        "Directory of the embedded server and other state.",
        flag="--data",
        env=["GPUFLEET_DATA"],
    )
    pool_size: int = setting(10, "Connections to the database.", minimum=2, maximum=100)
    query_timeout: float = setting(20.0, "Longest time that one query may take.", unit="s", minimum=0.1)
    retry_timeout: float = setting(
        10.0, "How long a lost connection is tried again before a caller hears of it.", unit="s", minimum=0
    )
    start_timeout: float = setting(
        60.0, "How long the server waits for the database when it starts.", unit="s", minimum=1
    )


@dataclass(frozen=True)
class MetricsSettings:
    """Where readings come from."""

    url: str = setting(
        "",
        "Prometheus, Thanos, Mimir or VictoriaMetrics. Empty: readings are kept in the store.",
        flag="--prometheus-url",
        env=["PROMETHEUS_URL"],
    )
    bearer_token_file: Path | None = setting(None, "File with the bearer token for the metric source.")
    username: str = setting("", "User name for basic authentication at the metric source.")
    password_file: Path | None = setting(None, "File with the password that belongs to `username`.")
    ca_file: Path | None = setting(None, "Certificates that sign the metric source's own.")
    headers: tuple[str, ...] = setting(
        (), "Further request headers as `Name: value` (a tenant of Mimir, for one).", secret=True
    )
    timeout: float = setting(10.0, "Longest time that one query may take.", unit="s", minimum=0.1)
    max_queries: int = setting(8, "Queries at the metric source at once.", minimum=1, maximum=100)
    refresh: float = setting(15.0, "How often the latest readings are fetched.", unit="s", minimum=1)
    retention: float = setting(
        86400.0, "How long readings are kept in the store, if that is where they are.", unit="s", minimum=3600
    )
    training_retention: float = setting(
        30 * 86400.0, "How long the numbers that training jobs report are kept.", unit="s", minimum=3600
    )
    vocabularies: tuple[str, ...] = setting(
        (),
        "Exporters to read; all that are found if empty.",
        choices=["gpufleet", "dcgm", "amd", "nvidia-smi", "all-smi"],
    )
    detect: float = setting(
        300.0, "How often the metric source is asked which exporters there are.", unit="s", minimum=1
    )
    max_answer_bytes: int = setting(
        256 * 1024 * 1024, "Largest answer that is taken from the metric source.", unit="bytes", minimum=1024
    )
    cache_bytes: int = setting(
        64 * 1024 * 1024, "Memory for series that were asked for lately.", unit="bytes", minimum=0
    )
