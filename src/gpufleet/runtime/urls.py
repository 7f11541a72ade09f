"""Show URLs of the settings without the secrets in them."""

from urllib.parse import urlsplit


def without_credentials(url: str) -> str:
    """Return `url` without user name, password, query and fragment, for messages and logs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "the configured URL"
    if not parts.scheme or "@" in parts.path:
        return "the configured URL"  # a password with a slash, perhaps
    if not parts.netloc:
        return f"{parts.scheme}://{parts.path}"
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{f':{port}' if port else ''}{parts.path}"


def is_valid(url: str) -> bool:
    """Return whether a client can parse `url`: special characters in a password must be encoded."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return "@" not in parts.path
