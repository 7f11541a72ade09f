"""A real Slurm for tests: Debian's controller and node daemons, without root and munge.

The packages are unpacked into the cache; character devices that every machine has (/dev/tty0 …)
stand in for GPUs. Without the packages, the tests that need them are skipped with the reason.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.debian import unpacked
from tests.sources.slurm.real_database import DATABASE_PACKAGES, Database

_PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmrestd",
    "libhwloc15",
    "libhttp-parser2.9",
    "libjson-c5",
    "libyaml-0-2",
)
GPUS = 8
_NO_DATABASE = "AccountingStorageType=accounting_storage/none"
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
{storage}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu,shard
ReturnToService=2
KillWait=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running cluster and its commands."""

    def __init__(
        self, root: Path, folder: Path, nodes: int, database: Database | None = None, shards: int = 0
    ) -> None:
        self.folder = folder
        self.bin = root / "usr/bin"
        self.configuration = folder / "slurm.conf"
        self.names = [f"node-{number}" for number in range(1, nodes + 1)]
        self._sbin = root / "usr/sbin"
        self._libraries = next((root / "usr/lib").glob("*/slurm-wlm")).parent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._database = database
        self._shards = shards
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which Slurm's programs find their configuration and libraries."""
        libraries = [self._libraries, self._libraries / "slurm-wlm"]
        if self._database is not None:
            libraries += self._database.libraries
        found = ":".join(map(str, libraries))
        return {**os.environ, "SLURM_CONF": str(self.configuration), "LD_LIBRARY_PATH": found}

    def start(self) -> None:
        """Start the daemons and wait until every node is idle."""
        if self._database is not None:
            self._database.start(self.environment)
            self.command("sacctmgr", "--immediate", "add", "cluster", "test")
            self.command("sacctmgr", "--immediate", "add", "account", "research", "Cluster=test")
            self.command(
                "sacctmgr", "--immediate", "add", "user", f"name={getpass.getuser()}", "account=research"
            )
        self._spawn("slurmctld", ["slurmctld", "-D", "-c"])
        stepd = str(self._sbin / "slurmstepd-wlm")
        for name in self.names:
            self._spawn(name, ["slurmd", "-D", "-N", name, "-d", stepd])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self._idle() == len(self.names):
                return
            time.sleep(0.1)
        log = (self.folder / "slurmctld.log").read_text()[-1000:]
        raise AssertionError(f"Slurm did not get ready within 30 s: {log}")

    def stop(self) -> None:
        """Stop the daemons and the jobs that they started."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        for started in psutil.process_iter(["environ"]):
            if (started.info["environ"] or {}).get("SLURM_CONF") == str(self.configuration):
                with suppress(psutil.NoSuchProcess):
                    started.kill()
        if self._database is not None:
            self._database.stop()

    def command(self, program: str, *arguments: str) -> str:
        """Run a Slurm command and return its output."""
        done = subprocess.run(
            [self.bin / program, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=20,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, script: str, *options: str) -> int:
        """Submit a batch job and return its id."""
        output = self.command("sbatch", "--parsable", "--output=/dev/null", f"--wrap={script}", *options)
        return int(output.split(";")[0])

    def freeze(self) -> None:
        """Make the controller hang: it accepts connections and never answers."""
        self._processes["slurmctld"].send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the controller continue."""
        self._processes["slurmctld"].send_signal(signal.SIGCONT)

    def rest(self, listen: str, *, tokens: bool = False) -> "subprocess.Popen[bytes]":
        """Start slurmrestd on `host:port` or `unix:/path`, with or without tokens; the caller stops it."""
        parts = "openapi/v0.0.38,openapi/dbv0.0.38" if self._database else "openapi/v0.0.38"
        by, more = ("rest_auth/jwt", {"SLURM_JWT": "daemon"}) if tokens else ("rest_auth/local", {})
        return subprocess.Popen(
            [self._sbin / "slurmrestd", "-a", by, "-s", parts, listen],
            env={**self.environment, "SLURMRESTD_SECURITY": "disable_user_check", **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _spawn(self, name: str, command: list[str]) -> None:
        self._processes[name] = subprocess.Popen(
            command,  # the daemons depend on the name of the command
            executable=self._sbin / f"{command[0]}-wlm",
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def _idle(self) -> int:
        try:
            done = subprocess.run(
                [self.bin / "sinfo", "--noheader", "--Node", "--format=%N %T"],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=2,
            )
        except subprocess.TimeoutExpired:
            return 0
        return sum(line.endswith(" idle") for line in done.stdout.splitlines())

    def _write(self) -> None:
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(1 + len(self.names))
        (self.folder / "state").mkdir()
        lines = []
        for name, port in zip(self.names, ports[1:], strict=True):
            (self.folder / f"spool-{name}").mkdir()
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 "
                f"RealMemory=8000 Gres=gpu:a100:{GPUS}" + (f",shard:{self._shards}" if self._shards else "")
            )
        self.configuration.write_text(
            _CONFIGURATION.format(
                host=host,
                port=ports[0],
                user=getpass.getuser(),
                plugins=":".join(
                    map(
                        str,
                        [self._libraries / "slurm-wlm", *(self._database.plugins if self._database else ())],
                    )
                ),
                storage="\n".join(self._database.configuration) if self._database else _NO_DATABASE,
                folder=self.folder,
                nodes="\n".join(lines),
            )
        )
        devices = f"File=/dev/tty[0-{GPUS - 1}]"
        lines = [f"NodeName={name} Name=gpu Type=a100 {devices}\n" for name in self.names]
        if self._shards:
            lines += [f"NodeName={name} Name=shard Count={self._shards}\n" for name in self.names]
        text = "".join(lines)
        (self.folder / "gres.conf").write_text(text)


@contextmanager
def running_slurm(nodes: int = 2, *, accounting: bool = False, shards: int = 0) -> Iterator[Slurm]:
    """Run a cluster of `nodes` idle nodes with eight GPUs each, and so many shards, and remove it at the end."""
    root = unpacked(*_PACKAGES)
    database_root = unpacked(*DATABASE_PACKAGES) if accounting else None
    missing = [n for n in range(GPUS) if not Path(f"/dev/tty{n}").is_char_device()]
    if missing:
        pytest.skip(f"no /dev/tty{missing[0]} on this machine to stand in for a GPU of Slurm")
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-slurm-"))
    database = Database(root, database_root, folder, *_free_ports(1)) if database_root else None
    slurm = Slurm(root, folder, nodes, database, shards)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
