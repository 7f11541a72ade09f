"""A database directory on disk: made once, then started with the settings that we want.

`initdb` works in a folder beside the final one, which is renamed when everything is there:
a start that was killed half-way leaves nothing that looks like a database. What is in the
place already is used only if it is a database of the right version; nothing is overwritten.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpufleet.errors import OperationRefused, StoreUnavailable
from gpufleet.store.postgres.programs import SystemUser, account_for, open_programs, open_the_way, programs

DATABASE = "gpufleet"
"""The database, and the role that owns it."""

_INITDB_SECONDS = 120
_KEEPER = '"$@" </dev/null & server=$!; (read -r _; kill -INT "$server" 2>/dev/null) <&3 & exec 3<&-; wait "$server"'
"""Ends the server when our end of the pipe on its standard input closes: also after a kill -9 of ours."""


@dataclass(frozen=True)
class DataDirectory:
    """What PostgreSQL calls a database cluster: one directory that one server serves."""

    pgdata: Path
    sockets: Path
    log: Path
    account: SystemUser
    programs: Path

    @property
    def dsn(self) -> str:
        """How to connect, for the one database that is ours."""
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        """How to connect to a database of this server."""
        return dsn_at(self.sockets, database)

    def spawn(self, options: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start the server under its keeper; closing `stdin` of the process stops it cleanly."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            **options,
        }
        words = [str(self.programs / "postgres"), "-D", str(self.pgdata)]
        for name, value in settings.items():
            words += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", f"exec 3<&0; {_KEEPER}", "postgres", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                user=self.account.uid,
                group=self.account.gid,
                extra_groups=None if self.account.uid is None else [],
                # a Ctrl-C at the terminal is for us: we stop the database last
                start_new_session=True,
            )

    def last_words(self, lines: int = 5) -> str:
        """The end of the server's log, for a message that says why it does not start."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def postmaster(self) -> int | None:
        """The pid that the server noted of itself, if it is there and alive."""
        try:
            pid = int((self.pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid


def dsn_at(sockets: Path, database: str) -> str:
    """How to connect to the server whose socket is in a folder."""
    return f"postgresql://{DATABASE}@/{database}?host={quote(str(sockets))}"


def prepare(
    pgdata: Path, sockets: Path, log: Path, *, durable: bool = True, folder: Path | None = None
) -> DataDirectory:
    """The cluster in `pgdata`, made if there is none.

    `durable=False` (nothing is synced) and other programs, in `folder`, are for tests.
    """
    folder = folder or programs()
    account = account_for(pgdata)
    open_the_way(account, folder / "postgres", pgdata, sockets)
    open_programs(account, folder)
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
    words = [str(cluster.programs / "initdb"), "-D", str(unfinished), "-U", DATABASE, "-A", "trust"]
    words += ["-E", "UTF8", "--locale=C", "--no-instructions"]
    try:
        done = subprocess.run(
            [*words] if durable else [*words, "--no-sync"],
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
        raise StoreUnavailable(f"initdb did not finish in {_INITDB_SECONDS} s at {unfinished}") from None
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        said = done.stderr.splitlines() or ["no reason was given"]
        why = next((line for line in said if "could not" in line or "FATAL" in line), said[-1])
        raise StoreUnavailable(f"can't make a database at {cluster.pgdata}: {why.strip()}")
    if cluster.pgdata.exists():
        cluster.pgdata.rmdir()
    unfinished.rename(cluster.pgdata)


def _check_version(cluster: DataDirectory) -> None:
    try:
        found = (cluster.pgdata / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise OperationRefused(
            f"{cluster.pgdata} is not empty and is no PostgreSQL database; "
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
            f"{cluster.pgdata} was written by PostgreSQL {found}, this gpufleet brings {ours}; "
            "move the data over with pg_dump and psql of both versions, or use DATABASE_URL"
        )


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "TZ", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C"}
