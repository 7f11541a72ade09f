"""Ask Slurm through its commands, as a user at a login node would.

The commands wait for a controller that is away, some of them for ever, so each has a deadline
after which it is killed with all that it started. `scontrol` has no JSON before 23.02: its lines
are read then.
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
from gpufleet.sources.slurm.wire import JobRecord, NodeRecord, PastRecord, read_jobs, read_nodes, read_past

_AT_A_TIME = 1 << 16


class Commands:
    """Slurm as `squeue`, `scontrol` and `sacct` show it."""

    def __init__(self, settings: SlurmSettings, environ: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._environ = dict(os.environ if environ is None else environ)
        if settings.conf is not None:
            self._environ["SLURM_CONF"] = str(settings.conf)
        # The tasks of an array that wait are cut after 64 characters otherwise, and so would be their GPUs.
        self._environ["SLURM_BITSTR_LEN"] = "0"
        self._scontrol_has_json = True
        self._accounting = True

    async def jobs(self) -> tuple[JobRecord, ...]:
        """Every job that the controller knows, ended ones of the last minutes among them."""
        return read_jobs(await self._said("squeue", "--json", "--states=all"))

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """Every node."""
        if self._scontrol_has_json:
            try:
                return read_nodes(await self._said("scontrol", "show", "nodes", "--json"))
            except SlurmUnavailable as error:
                if "option" not in str(error):
                    raise
                self._scontrol_has_json = False
        lines = await self._said("scontrol", "--oneliner", "show", "nodes")
        return nodes_in_text(lines.decode(errors="replace"))

    async def past(self, since: float) -> tuple[PastRecord, ...]:
        """Jobs that the accounting database has since then; none where there is no such database."""
        if not self._accounting:
            return ()
        start = datetime.fromtimestamp(since).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
        try:
            return read_past(
                await self._said("sacct", "--json", "--allusers", "--allocations", f"--starttime={start}")
            )
        except SlurmUnavailable as error:
            if "storage is disabled" not in str(error):
                raise
            self._accounting = False
            return ()

    async def close(self) -> None:
        """Nothing stays open."""

    async def _said(self, program: str, *arguments: str) -> bytes:
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
                f"{path} can't be run ({error.strerror}); set slurm.bin to where Slurm's commands are, "
                "or slurm.url to a slurmrestd"
            ) from None
        try:
            async with asyncio.timeout(self._settings.timeout):
                said, complaint = await asyncio.gather(
                    self._all_of(process.stdout, program), self._all_of(process.stderr, program)
                )
                status = await process.wait()
        except TimeoutError:
            raise SlurmUnavailable(
                f"{program} did not answer within {self._settings.timeout:g} s; is the controller up?"
            ) from None
        finally:
            await _end(process)
        if status:
            words = " ".join(complaint.decode(errors="replace").split())[:300]
            raise SlurmUnavailable(f"{program} failed: {words or f'exit status {status}'}")
        return said

    async def _all_of(self, stream: asyncio.StreamReader | None, program: str) -> bytes:
        assert stream is not None
        pieces, size = [], 0
        while piece := await stream.read(_AT_A_TIME):
            pieces.append(piece)
            size += len(piece)
            if size > self._settings.max_answer_bytes:
                raise SlurmUnavailable(
                    f"{program} prints more than slurm.max_answer_bytes ({self._settings.max_answer_bytes})"
                )
        return b"".join(pieces)


async def _end(process: Process) -> None:
    """Kill the command with all that it started, if it still runs, and wait for it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
