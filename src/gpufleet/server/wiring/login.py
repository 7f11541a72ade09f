"""Build the login of a server from its settings."""

from collections.abc import Iterable

from gpufleet.errors import SettingsError
from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.access_review import AccessReviews
from gpufleet.kubernetes.token_review import TokenReviews
from gpufleet.runtime.listening import is_loopback
from gpufleet.runtime.settings import AuthSettings, ServerSettings, Settings
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.permissions import GroupPermissions
from gpufleet.server.auth.rbac import KubernetesPermissions
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.dashboard import PUBLIC, PUBLIC_FOLDERS
from gpufleet.server.wiring.components import Components


def require_login(settings: Settings) -> None:
    """Raise SettingsError if the server would listen on a public address without login."""
    server, auth = settings[ServerSettings], settings[AuthSettings]
    if is_loopback(server.host) or auth.tokens_file or auth.token_review or server.insecure:
        return
    raise SettingsError(
        f"{server.host or 'every address of this machine'} is reachable from other machines without login: "
        "give --tokens-file or --token-review, or --insecure if something else controls access"
    )


def build_gate(components: Components) -> BearerGate | None:
    """Return the gate that checks callers; None for a server without login."""
    auth = components.settings[AuthSettings]
    if not auth.tokens_file and not auth.token_review:
        return None
    return BearerGate(
        TokenFile(auth.tokens_file) if auth.tokens_file else None,
        _reviewed_tokens(components, auth) if auth.token_review else None,
        workloads=components.workload_tokens,
        public=PUBLIC,
        public_folders=PUBLIC_FOLDERS,
    )


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


def _namespaces(clusters: Clusters) -> Iterable[str]:
    """Return the namespaces of the workloads on Kubernetes, those that run first."""
    running = [each for cluster in clusters for each in cluster.fleet.workloads().values()]
    ended = [each.workload for cluster in clusters for each in cluster.fleet.ended().values()]
    return dict.fromkeys(each.namespace for each in running + ended[::-1] if each.source == "k8s")
