"""Where the API server listens, and who may call it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, and its limits."""

    host: str = setting(
        "127.0.0.1", "Address to listen on. Any address other than loopback needs a login.", flag="--host"
    )
    port: int = setting(
        8080, "Port to listen on; 0 picks a free one.", flag="--port", env=["PORT"], minimum=0, maximum=65535
    )
    insecure: bool = setting(False, "Allow addresses other than loopback without a login.", flag="--insecure")
    debug: bool = setting(False, "Serve /debug/vars and /debug/pprof on loopback.", flag="--debug")
    cors_origins: tuple[str, ...] = setting((), "Origins whose pages may call the API from a browser.")
    hosts: tuple[str, ...] = setting(
        (),
        "Host names, besides localhost, that a server on loopback without a login accepts "
        "(for example those of a reverse proxy).",
    )
    mcp: bool = setting(
        True, "Serve read-only tools for AI assistants at /mcp, if the extra `mcp` is installed."
    )
    request_timeout: float = setting(
        30.0,
        "Longest time for one request; then it gets status 503.",
        unit="s",
        minimum=0.1,
    )
    max_requests: int = setting(512, "Concurrent requests; more get status 503 with Retry-After.", minimum=1)
    max_requests_per_caller: int = setting(
        128,
        "Concurrent requests of one caller, or of one address without a login; more get status 429 with "
        "Retry-After.",
        minimum=1,
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Addresses and networks of reverse proxies whose X-Forwarded-For names the client; "
        "from others it is ignored.",
    )


@dataclass(frozen=True)
class AuthSettings:
    """Who may call the API."""

    tokens_file: Path | None = setting(
        None,
        "File of hashed bearer tokens with their roles; reloaded when it changes.",
        flag="--tokens-file",
    )
    token_review: bool = setting(
        False, "Authenticate bearer tokens with the Kubernetes API (TokenReview).", flag="--token-review"
    )
    operators: tuple[str, ...] = setting(
        (), "Kubernetes users and groups with the role operator, besides those that RBAC allows."
    )
    operator_groups: tuple[str, ...] = setting(
        (), "Groups of Kubernetes or of the OIDC provider with the role operator."
    )
    viewer_groups: tuple[str, ...] = setting(
        (), "Groups of Kubernetes or of the OIDC provider with the role viewer."
    )
    group_namespaces: Mapping[str, tuple[str, ...]] = setting(
        {}, "Groups whose members are viewers of some namespaces only; in the file GROUP = [NAMESPACES]."
    )
    viewer_role: str = setting(
        "gpufleet-viewer", "ClusterRole that a refusal names to Kubernetes users without a permission."
    )
    review_cache: float = setting(
        60.0,
        "How long the results of a TokenReview and of SubjectAccessReviews are cached.",
        unit="s",
        minimum=0,
    )
    workload_key_file: Path | None = setting(
        None,
        "Key that signs the tokens of workloads. By default a file in `store.data` is created; "
        "all servers of one database need the same key.",
    )
