"""A real accounting database for tests: Debian's slurmdbd and MariaDB, and keys for tokens."""

import getpass
import secrets
import subprocess
from pathlib import Path

from tests.waiting import block_until

DATABASE_PACKAGES = (
    "slurmdbd",
    "slurm-wlm-mysql-plugin",
    "slurm-wlm-jwt-plugin",
    "libjwt0",
    "libjansson4",
    "libb64-0d",
    "mariadb-server-core",
    "libmariadb3",
    "libaio1",
    "libnuma1",
    "liburing2",
    "libpcre2-8-0",
)
_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_RIGHTS = """\
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
"""
_CONFIGURATION = """\
AuthType=auth/none
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={key}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
PluginDir={plugins}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


class Database:
    """MariaDB on a socket and slurmdbd on a port, in one directory."""

    def __init__(self, slurm_root: Path, root: Path, folder: Path, port: int) -> None:
        self._root = root
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        found = next((root / "usr/lib").glob("*/slurm-wlm"))
        self.plugins = (found,)
        self.libraries = [found.parent, *(root / "lib").glob("*-linux-gnu")]
        key = folder / "jwt.key"
        key.write_bytes(secrets.token_bytes(32))
        key.chmod(0o600)
        self.configuration = (
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={port}",
            "AccountingStorageTRES=gres/gpu",
            "AuthAltTypes=auth/jwt",
            f"AuthAltParameters=jwt_key={key}",
            "MinJobAge=2",
        )
        own = next((slurm_root / "usr/lib").glob("*/slurm-wlm"))
        self._password = secrets.token_hex(8)
        conf = folder / "slurmdbd.conf"
        conf.write_text(
            _CONFIGURATION.format(
                key=key,
                port=port,
                user=getpass.getuser(),
                password=self._password,
                plugins=f"{own}:{found}",
                folder=folder,
            )
        )
        conf.chmod(0o600)

    def start(self, environment: dict[str, str]) -> None:
        """Create the database, start both, and wait until slurmdbd listens."""
        shared = self._root / "usr/share/mysql"
        data, temporary, socket = (self._folder / name for name in ("data", "tmp", "m.sock"))
        data.mkdir()
        temporary.mkdir()
        server = [
            str(self._root / "usr/sbin/mariadbd"), "--no-defaults", f"--datadir={data}", f"--tmpdir={temporary}",
            f"--user={getpass.getuser()}", f"--lc-messages-dir={shared}", f"--plugin-dir={self._folder}",
            "--skip-networking", f"--socket={socket}", f"--pid-file={self._folder / 'm.pid'}",
            "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0",
        ]  # fmt: skip
        tables = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        tables += "".join((shared / name).read_text() for name in _TABLES)
        subprocess.run(
            [*server, "--bootstrap"],
            input=tables.encode(),
            env=environment,
            capture_output=True,
            check=True,
            timeout=120,
        )
        rights = self._folder / "rights.sql"
        rights.write_text(_RIGHTS.format(password=self._password))
        self._spawn([*server, f"--init-file={rights}"], environment)
        block_until(socket.exists, 60)
        own = {**environment, "MYSQL_UNIX_PORT": str(socket)}
        self._spawn([str(self._root / "usr/sbin/slurmdbd"), "-D"], own)
        log = self._folder / "slurmdbd.log"
        block_until(lambda: log.exists() and "started" in log.read_text(), 60)

    def stop(self) -> None:
        """Stop both."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _spawn(self, command: list[str], environment: dict[str, str]) -> None:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        self._processes.append(process)
