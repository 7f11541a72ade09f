"""Build a server from its settings.

`open_components` opens the components in order; each function takes `Components`, opens what it
needs and adds routes, probes or background tasks. `http_server` builds the HTTP server over them.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.runtime.listening import is_loopback
from gpufleet.runtime.settings import (
    AuthSettings,
    KubernetesSettings,
    ServerSettings,
    Settings,
    StoreSettings,
)
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.http.middleware import Limits
from gpufleet.server.http.server import Server
from gpufleet.server.wiring.accounting import open_accounting
from gpufleet.server.wiring.clusters import open_clusters
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.leader_health import watch_clock
from gpufleet.server.wiring.login import build_login, open_identity_provider
from gpufleet.server.wiring.routes import add_routes
from gpufleet.store.store import open_store


async def assemble(settings: Settings, exit_stack: AsyncExitStack, *, simulated: bool = False) -> Server:
    """Open every component and return the server, ready to serve."""
    if path := settings[AuthSettings].tokens_file:
        TokenFile(path)  # report mistakes in it before a database starts
    return http_server(await open_components(settings, exit_stack, simulated=simulated))


async def open_components(
    settings: Settings,
    exit_stack: AsyncExitStack,
    *,
    simulated: bool = False,
    prepare: Callable[[Components], Awaitable[None]] | None = None,
) -> Components:
    """Open every component, in order; call `prepare` when the store is open and nothing reads from it yet."""
    components = Components(settings, exit_stack, simulated=simulated)
    await open_identity_provider(components)
    await open_kubernetes(components)
    await open_database(components)
    if prepare is not None:
        await prepare(components)
    await open_clusters(components)
    await open_accounting(components)
    add_routes(components)
    return components


async def open_kubernetes(components: Components) -> None:
    """Open the server's own client of a Kubernetes API, to review tokens and access."""
    settings = components.settings[KubernetesSettings]
    if settings.kubeconfig is None and not components.settings[AuthSettings].token_review:
        return
    client = await components.exit_stack.enter_async_context(KubeClient.from_settings(settings))

    async def probe() -> str:
        return f"Kubernetes {(await client.read_json('/version'))['gitVersion']}"

    components.kubernetes, components.probes["kubernetes"] = client, probe


async def open_database(components: Components) -> None:
    """Open the store and migrate its tables."""
    settings = components.settings[StoreSettings]
    store = await components.exit_stack.enter_async_context(open_store(settings))

    async def probe() -> str:
        version = await store.database.fetchval("SHOW server_version")
        await store.database.check_writes()
        return f"PostgreSQL {version}"

    components.store, components.probes["store"] = store, probe
    watch_clock(components)
    for name, help_text, read in (
        ("transactions", "Transactions with the database.", lambda: store.database.counts.transactions),
        ("repeats", "Transactions retried after an error.", lambda: store.database.counts.repeats),
        ("failures", "Transactions that failed permanently.", lambda: store.database.counts.failures),
    ):
        components.metrics.count(f"gpufleet_store_{name}", help_text, read)


def http_server(components: Components) -> Server:
    """Build the HTTP server over the open components."""
    server = components.settings[ServerSettings]
    gate, sign_in = build_login(components)
    api = Api(
        routes=components.routes,
        probes=components.probes,
        gate=gate,
        sign_in=sign_in,
        limits=Limits(
            request_timeout=server.request_timeout,
            max_requests=server.max_requests,
            max_requests_per_caller=server.max_requests_per_caller,
        ),
        metrics=components.metrics,
        lifecycle=components.lifecycle,
        cors_origins=server.cors_origins,
        hosts=server.hosts if gate is None and is_loopback(server.host) else None,
        mcp=server.mcp,
        simulated=components.simulated,
        debug_counts=components.debug_counts if server.debug else None,
    )
    return Server(
        create_app(api),
        components.lifecycle,
        trusted_proxies=server.trusted_proxies,
    )
