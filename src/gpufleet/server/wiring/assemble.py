"""Join the parts of the server: each function here opens one part and hands it to the others.

`assemble` calls them in order. A part that needs closing is entered into the exit stack, which
closes in reverse order when the server stops. To add a part, write a function that takes `Components`,
opens what it needs and adds routes, probes, counts or work in the background, and name it in `_STEPS`.
"""

from contextlib import AsyncExitStack

from gpufleet.errors import SettingsError
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.token_review import TokenReviews
from gpufleet.runtime.listening import is_loopback
from gpufleet.runtime.settings import (
    AuthSettings,
    KubernetesSettings,
    ServerSettings,
    Settings,
    StoreSettings,
)
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import TokenReviewer
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.dashboard import PUBLIC, PUBLIC_FOLDERS
from gpufleet.server.http.middleware import Gate, Limits
from gpufleet.server.http.server import Server
from gpufleet.server.wiring.accounting import open_accounting
from gpufleet.server.wiring.claims import add_claim_routes
from gpufleet.server.wiring.clusters import open_clusters
from gpufleet.server.wiring.components import Components, Step
from gpufleet.server.wiring.dashboard import add_dashboard
from gpufleet.server.wiring.live_routes import add_live_routes
from gpufleet.store.store import open_store


async def open_kubernetes(parts: Components) -> None:
    """The client of the Kubernetes API, where the settings ask for one."""
    settings = parts.settings[KubernetesSettings]
    if settings.kubeconfig is None and not parts.settings[AuthSettings].token_review:
        return
    client = await parts.closing.enter_async_context(KubeClient.from_settings(settings))

    async def probe() -> str:
        return f"Kubernetes {(await client.read_json('/version'))['gitVersion']}"

    parts.kubernetes, parts.reviewer, parts.probes["kubernetes"] = client, TokenReviews(client), probe


async def open_database(parts: Components) -> None:
    """The store, with its tables up to date."""
    store = await parts.closing.enter_async_context(open_store(parts.settings[StoreSettings]))

    async def probe() -> str:
        return f"PostgreSQL {await store.database.fetchval('SHOW server_version')}"

    parts.store, parts.probes["store"] = store, probe
    for name, told, read in (
        ("transactions", "Transactions with the database.", lambda: store.database.counts.transactions),
        ("repeats", "Transactions tried again after a fault.", lambda: store.database.counts.repeats),
        ("failures", "Transactions that failed for good.", lambda: store.database.counts.failures),
    ):
        parts.metrics.count(f"gpufleet_store_{name}", told, read)


_STEPS: tuple[Step, ...] = (
    open_kubernetes,
    open_database,
    open_clusters,
    open_accounting,
    add_live_routes,
    add_claim_routes,
    add_dashboard,
)


def refuse_strangers(settings: Settings) -> None:
    """Stop before an address that others can reach is served without login."""
    server, auth = settings[ServerSettings], settings[AuthSettings]
    if is_loopback(server.host) or auth.tokens_file or auth.token_review or server.insecure:
        return
    raise SettingsError(
        f"others can reach {server.host or 'every address of this machine'}, and nobody would have to log in: "
        "give --tokens-file or --token-review, or --insecure if something else keeps strangers out"
    )


async def assemble(settings: Settings, closing: AsyncExitStack, *, simulated: bool = False) -> Server:
    """Open every part and return the server, ready to serve."""
    if path := settings[AuthSettings].tokens_file:
        TokenFile(path)  # what is wrong with it is said before a database starts
    return http_server(await open_parts(settings, closing, simulated=simulated))


async def open_parts(
    settings: Settings, closing: AsyncExitStack, *, simulated: bool = False, prepare: Step | None = None
) -> Components:
    """Open every part, in order; `prepare` gets the store before anything reads from it."""
    parts = Components(settings, closing, simulated=simulated)
    for step in _STEPS:
        await step(parts)
        if step is open_database and prepare is not None:
            await prepare(parts)
    return parts


def http_server(parts: Components) -> Server:
    """The HTTP server over what is in `parts`."""
    server = parts.settings[ServerSettings]
    login = gate(parts.settings[AuthSettings], parts.reviewer, parts.workload_tokens)
    api = Api(
        routes=parts.routes,
        pages=parts.pages,
        probes=parts.probes,
        gate=login,
        limits=Limits(server.max_body_bytes, server.request_timeout, server.max_requests),
        metrics=parts.metrics,
        lifecycle=parts.lifecycle,
        cors_origins=server.cors_origins,
        hosts=server.hosts if login is None and is_loopback(server.host) else None,
        simulated=parts.simulated,
        debug_counts=parts.counts if server.debug else None,
    )
    return Server(create_app(api), parts.lifecycle, server.shutdown_grace)


def gate(
    auth: AuthSettings, reviewer: TokenReviewer | None, workloads: WorkloadTokens | None = None
) -> Gate | None:
    """Who may call; None where nobody has to log in."""
    if not auth.tokens_file and not auth.token_review:
        return None
    tokens = TokenFile(auth.tokens_file) if auth.tokens_file else None
    if not auth.token_review:
        return BearerGate(tokens, workloads=workloads, public=PUBLIC, public_folders=PUBLIC_FOLDERS)
    if reviewer is None:
        raise SettingsError("setting auth.token_review: needs a Kubernetes API; give --kubeconfig")
    reviews = ReviewedTokens(reviewer, auth.operators, auth.review_cache)
    return BearerGate(tokens, reviews, workloads=workloads, public=PUBLIC, public_folders=PUBLIC_FOLDERS)
