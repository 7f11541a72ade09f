"""The server and token that `gpufleet login` saved for this user."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MARGIN = 30.0


def credentials_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file, in the user's configuration folder."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "gpufleet" / "login.json"


def saved_server(environ: Mapping[str, str]) -> str:
    """Return the address of the last login, or an empty text."""
    return str(_read(environ).get("server", ""))


def saved_token(server: str, environ: Mapping[str, str]) -> str:
    """Return the token of the last login, if it was at `server` and is still valid."""
    saved = _read(environ)
    expired = time.time() > float(saved.get("expires", 0)) - _MARGIN
    return "" if expired or saved.get("server") != server.rstrip("/") else str(saved.get("token", ""))


def save_login(server: str, token: str, expires: float, environ: Mapping[str, str]) -> Path:
    """Write server and token into a file that only this user can read; return its path."""
    path = credentials_file(environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"server": server.rstrip("/"), "token": token, "expires": expires}, file)
    temporary.replace(path)
    return path


def delete_login(environ: Mapping[str, str]) -> bool:
    """Delete the saved login; return whether there was one."""
    path = credentials_file(environ)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def _read(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = json.loads(credentials_file(environ).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
