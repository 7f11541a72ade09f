"""What following a large Slurm cluster costs: 3,000 nodes and 20,000 GPU jobs, asked every 15 seconds.

The answers are made here and handed to the source, so that the figures are those of gpufleet and
not of a controller. A turn in which little changed is compared with the plain decoding of the
same answer, which nobody can save.
"""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from bench.result import Result
from gpufleet.fleet.state import Fleet
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm import SlurmSource
from gpufleet.sources.slurm.wire import JobRecord, NodeRecord, PastRecord, read_jobs, read_nodes

NODES, JOBS = 3000, 20_000
PERIOD = 15.0


class Answers:
    """The same cluster each time, but for a hundred jobs that started since."""

    def __init__(self) -> None:
        nodes = [{"name": f"n{i}", "gres": "gpu:a100:8(S:0-1)", "state": ["MIXED"]} for i in range(NODES)]
        self._nodes = json.dumps({"nodes": nodes, "errors": []}).encode()
        self._rows = [_job(number) for number in range(JOBS)]
        self.raw = self._encoded()

    def start_some(self, turn: int) -> None:
        for number in range(100 * turn, 100 * turn + 100):
            self._rows[JOBS - 1 - number] = _job(number, placed=True) | {"job_id": JOBS - number}
        self.raw = self._encoded()

    async def jobs(self) -> tuple[JobRecord, ...]:
        return read_jobs(self.raw)

    async def nodes(self) -> tuple[NodeRecord, ...]:
        return read_nodes(self._nodes)

    async def past(self, since: float) -> tuple[PastRecord, ...]:
        return ()

    async def close(self) -> None:
        pass

    def _encoded(self) -> bytes:
        return json.dumps({"jobs": self._rows, "errors": []}).encode()


def _job(number: int, placed: bool | None = None) -> dict[str, Any]:
    placed = number < 6000 if placed is None else placed
    first = 2 * number % NODES
    return {
        "job_id": number + 1,
        "name": f"job-{number}",
        "user_name": f"user{number % 200}",
        "account": f"team{number % 20}",
        "job_state": ["RUNNING" if placed else "PENDING"],
        "nodes": f"n[{first}-{first + 1}]" if placed else "",
        "gres_detail": ["gpu:a100:2(IDX:0-1)", "gpu:a100:2(IDX:2-3)"] if placed else [],
        "tres_req_str": "cpu=16,mem=128G,node=2,billing=16,gres/gpu=4",
        "submit_time": {"set": True, "infinite": False, "number": 1_700_000_000},
        "start_time": {"set": True, "infinite": False, "number": 1_700_000_100},
        "not_read": "x" * 1500,
    }


async def _turns() -> tuple[float, float, float]:
    answers = Answers()
    source = SlurmSource(SlurmSettings(enabled=True), Fleet("bench"), answers=answers)
    began = time.process_time()
    await source.look()
    first = time.process_time() - began
    later, decoding = [], []
    for turn in range(5):
        answers.start_some(turn)
        began = time.process_time()
        read_jobs(answers.raw)
        decoding.append(time.process_time() - began)
        began = time.process_time()
        await source.look()
        later.append(time.process_time() - began)
    return first, min(later), min(decoding)


def measure() -> Iterable[Result]:
    """The figures of one cluster."""
    first, later, decoding = asyncio.run(_turns())
    yield Result("Slurm, 20,000 GPU jobs: first turn", first, "s CPU", at_most=10)
    yield Result("Slurm, 20,000 GPU jobs: later turn", later, "s CPU")
    yield Result("Slurm: later turn, share of a core", 100 * later / PERIOD, "%", at_most=5)
    yield Result("Slurm: later turn beside decoding alone", later / decoding, "×", at_most=3)
