"""The PostgreSQL data directory: created with `initdb`, then served by a child process.

`initdb` runs in a temporary directory that is renamed at the end, so an interrupted start never leaves an
incomplete database. An existing directory is used only if it is a database of the right version; nothing
is ever overwritten.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpufleet.errors import OperationRefused, StoreUnavailable
from gpufleet.runtime.logs import get_logger
from gpufleet.store.postgres.programs import (
    SystemUser,
    closed_directory,
    open_data,
    programs,
    reachable_programs,
    shared_directory,
    system_user_for,
)

_log = get_logger("store")
DATABASE = "gpufleet"
"""The name of the database and of the role that owns it."""

_INITDB_SECONDS = 120
_WRAPPER = '"$@" </dev/null & server=$!; (read -r _; kill -INT "$server" 2>/dev/null) <&3 & exec 3<&-; wait "$server"'
"""A shell script that stops the server when its stdin closes, which happens even if our process is killed."""


@dataclass(frozen=True)
class DataDirectory:
    """One data directory, which PostgreSQL calls a database cluster."""

    pgdata: Path
    sockets: Path
    log: Path
    account: SystemUser
    programs: Path

    @property
    def dsn(self) -> str:
        """The DSN of the gpufleet database."""
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        """Return the DSN of a database of this server."""
        return dsn_at(self.sockets, database)

    def spawn(self, options: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start the server under its wrapper; closing `stdin` of the process stops it cleanly."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            **options,
        }
        command = [str(self.programs / "postgres"), "-D", str(self.pgdata)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", f"exec 3<&0; {_WRAPPER}", "postgres", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                user=self.account.uid,
                group=self.account.gid,
                extra_groups=None if self.account.uid is None else [],
                # keep Ctrl-C from reaching the server: we stop it last
                start_new_session=True,
            )

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the server's log, for error messages."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def postmaster(self) -> int | None:
        """Return the pid in the server's pid file if that process is alive."""
        try:
            pid = int((self.pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid


def dsn_at(sockets: Path, database: str) -> str:
    """Return the DSN of a server whose socket is in `sockets`."""
    return f"postgresql://{DATABASE}@/{database}?host={quote(str(sockets))}"


def database_directory(data: Path) -> Path:
    """Return the directory of the database in `data`.

    If PostgreSQL's user can't reach `data`, it is in `SHARED`, and a link in `data` leads there.
    """
    link = data / "postgres"
    if link.is_symlink() or link.exists():
        return link.resolve()
    account = system_user_for(link)
    open_data(account, data)
    if not closed_directory(account, link):
        return link
    name = f"{data.name}-{hashlib.sha256(bytes(data)).hexdigest()[:12]}"
    directory = shared_directory() / name
    directory.mkdir(exist_ok=True)
    link.symlink_to(directory / "postgres")
    _log.info("database_directory_linked", data=str(data), directory=str(directory))
    return directory / "postgres"


def prepare(
    pgdata: Path, sockets: Path, log: Path, *, durable: bool = True, folder: Path | None = None
) -> DataDirectory:
    """Return the data directory in `pgdata`; create it if it does not exist.

    `durable=False` (no fsync) and `folder`, with other PostgreSQL programs, are for tests.
    """
    folder = folder or programs()
    account = system_user_for(pgdata)
    open_data(account, pgdata.parent)
    if closed := closed_directory(account, pgdata, sockets):
        raise OperationRefused(f"PostgreSQL does not run as root, and its user may not search {closed}")
    folder = reachable_programs(account, folder)
    cluster = DataDirectory(pgdata, sockets, log, account, folder)
    sockets.mkdir(mode=0o700, exist_ok=True)
    account.own(sockets)
    if not pgdata.exists() or not any(pgdata.iterdir()):
        _create(cluster, durable)
    _check_version(cluster)
    return cluster


def _create(cluster: DataDirectory, durable: bool) -> None:
    unfinished = cluster.pgdata.with_name(cluster.pgdata.name + ".unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(mode=0o700, parents=True)
    cluster.account.own(unfinished)
    command = [str(cluster.programs / "initdb"), "-D", str(unfinished), "-U", DATABASE, "-A", "trust"]
    command += ["-E", "UTF8", "--locale=C", "--no-instructions"]
    try:
        done = subprocess.run(
            command if durable else [*command, "--no-sync"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INITDB_SECONDS,
            cwd="/",
            env=_environment(),
            user=cluster.account.uid,
            group=cluster.account.gid,
            extra_groups=None if cluster.account.uid is None else [],
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StoreUnavailable(f"initdb did not finish within {_INITDB_SECONDS} s in {unfinished}") from None
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        output = done.stderr.splitlines() or ["initdb gave no reason"]
        reason = next((line for line in output if "could not" in line or "FATAL" in line), output[-1])
        raise StoreUnavailable(f"can't create a database in {cluster.pgdata}: {reason.strip()}")
    if cluster.pgdata.exists():
        cluster.pgdata.rmdir()
    unfinished.rename(cluster.pgdata)


def _check_version(cluster: DataDirectory) -> None:
    try:
        found = (cluster.pgdata / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise OperationRefused(
            f"{cluster.pgdata} is not empty and not a PostgreSQL database; "
            "move it away or choose another directory with --data"
        ) from None
    ours = subprocess.run(
        [str(cluster.programs / "postgres"), "--version"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout.split()[2]
    if found != ours.split(".")[0]:
        raise OperationRefused(
            f"{cluster.pgdata} was created by PostgreSQL {found}, but this gpufleet contains {ours}; "
            "migrate the data with pg_dump and psql of both versions, or use DATABASE_URL"
        )


def _environment() -> dict[str, str]:
    names = ("PATH", "TZ", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ} | {"LC_ALL": "C"}
