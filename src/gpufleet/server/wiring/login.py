"""Build the login of a server from its settings."""

from collections.abc import Iterable

from gpufleet.errors import SettingsError
from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.access_review import AccessReviews
from gpufleet.kubernetes.token_review import TokenReviews
from gpufleet.runtime.listening import is_loopback
from gpufleet.runtime.settings import AuthSettings, OidcSettings, ServerSettings, Settings
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.object_access import ObjectAccess
from gpufleet.server.auth.oidc.provider import Provider
from gpufleet.server.auth.oidc.sessions import Sessions, SignedCookies, session_key
from gpufleet.server.auth.oidc.sign_in import SignIn
from gpufleet.server.auth.oidc.tokens import IdentityTokens
from gpufleet.server.auth.permissions import GroupPermissions
from gpufleet.server.auth.rbac import KubernetesPermissions
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.dashboard import PUBLIC, PUBLIC_FOLDERS
from gpufleet.server.wiring.components import Components


def has_login(settings: Settings) -> bool:
    """Return whether the settings require a login."""
    auth = settings[AuthSettings]
    return bool(auth.tokens_file or auth.token_review or settings[OidcSettings].issuer)


def require_login(settings: Settings) -> None:
    """Raise SettingsError if the server would listen on a public address without login."""
    server = settings[ServerSettings]
    if is_loopback(server.host) or has_login(settings) or server.insecure:
        return
    raise SettingsError(
        f"{server.host or 'every address of this machine'} is reachable from other machines without login: "
        "give --tokens-file, --token-review or --set oidc.issuer=URL, or --insecure if something else controls access"
    )


async def open_identity_provider(components: Components) -> None:
    """Open the client of the OpenID Connect provider, if the settings name one."""
    settings = components.settings[OidcSettings]
    if not settings.issuer:
        if settings != OidcSettings():
            raise SettingsError(
                "setting oidc.issuer: give the URL of the provider, or remove the other settings"
            )
        return
    if not GroupPermissions.from_settings(components.settings[AuthSettings]).known_groups:
        raise SettingsError(
            "setting oidc.issuer: without auth.viewer_groups, auth.operator_groups or auth.group_namespaces "
            "it would admit no user"
        )
    session_key(settings)  # report mistakes before a database starts
    provider = await components.exit_stack.enter_async_context(Provider(settings))
    components.identity_provider, components.probes["oidc"] = provider, provider.probe


def build_login(components: Components) -> tuple[BearerGate | None, SignIn | None]:
    """Return the gate that checks callers, None without a login, and the sign-in of the page with OIDC."""
    auth = components.settings[AuthSettings]
    if not has_login(components.settings):
        return None, None
    identities = sign_in = None
    if components.identity_provider is not None:
        identities, sign_in = _oidc(components.settings, components.identity_provider)
    gate = BearerGate(
        TokenFile(auth.tokens_file) if auth.tokens_file else None,
        _reviewed_tokens(components, auth) if auth.token_review else None,
        workloads=components.workload_tokens,
        identities=identities,
        sessions=sign_in.sessions if sign_in is not None else None,
        public=PUBLIC,
        public_folders=PUBLIC_FOLDERS,
    )
    return gate, sign_in


def _oidc(settings: Settings, provider: Provider) -> tuple[IdentityTokens, SignIn | None]:
    oidc, groups = settings[OidcSettings], GroupPermissions.from_settings(settings[AuthSettings])
    tokens = IdentityTokens(provider, oidc, groups)
    if not oidc.redirect_url:
        return tokens, None
    cookies = SignedCookies(session_key(oidc), secure=oidc.redirect_url.startswith("https://"))
    return tokens, SignIn(provider, tokens, Sessions(cookies, oidc, groups), cookies, oidc)


def _reviewed_tokens(components: Components, auth: AuthSettings) -> ReviewedTokens:
    client = components.kubernetes
    if client is None:
        raise SettingsError("setting auth.token_review: needs a Kubernetes API; give --kubeconfig")
    permissions = KubernetesPermissions(
        AccessReviews(client),
        GroupPermissions.from_settings(auth),
        auth.operators,
        lambda: _namespaces(components.clusters),
        auth.viewer_role,
    )
    return ReviewedTokens(TokenReviews(client), permissions, auth.review_cache)


def object_access(components: Components) -> ObjectAccess:
    """Return who may read Kubernetes objects: callers that the API server of the same cluster has authenticated.

    In another cluster, the same name may belong to somebody else.
    """
    client = components.kubernetes
    if client is None:
        return ObjectAccess({})
    reviewer = AccessReviews(client)
    return ObjectAccess(
        {
            name: reviewer
            for name, source in components.kubernetes_sources.items()
            if source.workload_objects.server == client.connection.server
        }
    )


def _namespaces(clusters: Clusters) -> Iterable[str]:
    """Return the namespaces of the workloads on Kubernetes, those that run first."""
    running = [each for cluster in clusters for each in cluster.fleet.workloads().values()]
    ended = [each.workload for cluster in clusters for each in cluster.fleet.ended().values()]
    return dict.fromkeys(each.namespace for each in running + ended[::-1] if each.source == "k8s")
