"""Login with an identity provider."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class OidcSettings:
    """Login with an OpenID Connect provider. The groups in `[auth]` give the permissions."""

    issuer: str = setting("", "URL of the provider, as in its discovery document and its tokens.")
    client_id: str = setting("", "Name of this server at the provider; the audience of its tokens.")
    client_secret_file: Path | None = setting(
        None, "File with the client's secret, read for each sign-in; none for a public client."
    )
    redirect_url: str = setting(
        "",
        "URL of /auth/callback as browsers reach it. Without it the page offers no sign-in, and only bearer "
        "tokens of the provider are accepted.",
    )
    scopes: tuple[str, ...] = setting(("openid", "profile", "email"), "Scopes that a sign-in asks for.")
    audiences: tuple[str, ...] = setting((), "Audiences of bearer tokens to accept besides `client_id`.")
    username_claim: str = setting(
        "email", "Claim with the caller's name; `sub` if a token lacks it or the email is not verified."
    )
    groups_claim: tuple[str, ...] = setting(
        ("groups",), "Claims whose values, a text or a list, are the caller's groups."
    )
    ca_file: Path | None = setting(
        None, "CA certificates that the provider is checked with; the system's by default."
    )
    session_lifetime: float = setting(
        8 * 3600.0, "How long a sign-in lasts.", unit="s", minimum=60, maximum=30 * 86400
    )
    session_key_file: Path | None = setting(
        None,
        "Key that signs the cookies of sessions, at least 32 random bytes. By default a new one at each start; "
        "replicas need the same key.",
    )
