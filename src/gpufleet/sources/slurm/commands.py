"""Query Slurm through its commands, like a user on a login node.

The commands wait for an unreachable controller, some of them forever, so each has a deadline after which
its process group is killed. `scontrol` has no JSON before 23.02; then its text output is parsed.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from gpufleet.errors import SlurmUnavailable
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.nodes import nodes_in_text
from gpufleet.sources.slurm.wire import (
    MAX_ANSWER_BYTES,
    AccountingRecord,
    JobRecord,
    NodeRecord,
    read_accounting,
    read_jobs,
    read_nodes,
)

_CHUNK_BYTES = 1 << 16
_MAX_ERROR_BYTES = 1 << 20


class SlurmCommands:
    """Query Slurm with `squeue`, `scontrol` and `sacct`."""

    def __init__(
        self,
        settings: SlurmSettings,
        environ: Mapping[str, str] | None = None,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._settings = settings
        self._environ = dict(os.environ if environ is None else environ)
        if settings.conf is not None:
            self._environ["SLURM_CONF"] = str(settings.conf)
        # Otherwise the list of pending array tasks is cut at 64 characters, which would lose GPUs.
        self._environ["SLURM_BITSTR_LEN"] = "0"
        self._scontrol_has_json = True
        self._accounting = True

    async def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs of the controller, including those that ended in the last minutes."""
        return read_jobs(await self._run("squeue", "--json", "--states=all"))

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """Return all nodes."""
        if self._scontrol_has_json:
            try:
                return read_nodes(await self._run("scontrol", "show", "nodes", "--json"))
            except SlurmUnavailable as error:
                if "option" not in str(error):
                    raise
                self._scontrol_has_json = False
        lines = await self._run("scontrol", "--oneliner", "show", "nodes")
        return nodes_in_text(lines.decode(errors="replace"))

    async def node(self, name: str) -> NodeRecord | None:
        """Return one node, or None if Slurm does not have it."""
        lines = await self._run("scontrol", "--oneliner", "show", "node", name)
        return next(iter(nodes_in_text(lines.decode(errors="replace"))), None)

    async def update_node(self, name: str, state: str, reason: str = "") -> None:
        """Drain or resume a node."""
        words = [f"NodeName={name}", f"State={state}", *([f"Reason={reason}"] if reason else [])]
        await self._run("scontrol", "update", *words)

    async def accounting_jobs(self, since: float) -> tuple[AccountingRecord, ...]:
        """Return the jobs in the accounting database since then; none without such a database."""
        if not self._accounting:
            return ()
        start = datetime.fromtimestamp(since).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
        try:
            return read_accounting(
                await self._run("sacct", "--json", "--allusers", "--allocations", f"--starttime={start}")
            )
        except SlurmUnavailable as error:
            if "storage is disabled" not in str(error):
                raise
            self._accounting = False
            return ()

    async def close(self) -> None:
        """Do nothing: no connection stays open."""

    async def _run(self, program: str, *arguments: str) -> bytearray:
        path = str(Path(self._settings.bin) / program) if self._settings.bin else program
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmUnavailable(
                f"{path} can't be run ({error.strerror}); set slurm.bin to the directory of Slurm's commands, "
                "or slurm.url to a slurmrestd"
            ) from None
        reading = (
            asyncio.create_task(self._read(process.stdout, program, self._max_answer_bytes)),
            asyncio.create_task(self._read(process.stderr, program, _MAX_ERROR_BYTES)),
        )
        try:
            async with asyncio.timeout(self._settings.timeout):
                stdout, stderr = await asyncio.gather(*reading)
                status = await process.wait()
        except TimeoutError:
            raise SlurmUnavailable(
                f"{program} did not answer within {self._settings.timeout:g} s; is the controller up?"
            ) from None
        finally:
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)
            await _kill(process)
        if status:
            message = " ".join(stderr.decode(errors="replace").split())[:300]
            raise SlurmUnavailable(f"{program} failed: {message or f'exit status {status}'}")
        return stdout

    async def _read(self, stream: asyncio.StreamReader | None, program: str, limit: int) -> bytearray:
        assert stream is not None
        output = bytearray()
        while chunk := await stream.read(_CHUNK_BYTES):
            output += chunk
            if len(output) > limit:
                raise SlurmUnavailable(f"{program} prints more than {limit} bytes")
        return output


async def _kill(process: Process) -> None:
    """Kill the process group of the command, if it still runs, and wait for it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    # Read what is left in the pipes: in Python 3.11, wait() alone never returns while reading is paused.
    await process.communicate()
