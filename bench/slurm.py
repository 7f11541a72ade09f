"""Measure the cost of polling a large Slurm cluster: 3,000 nodes and 20,000 GPU jobs every 15 seconds.

The responses are generated here, so the figures contain no work of a controller. A refresh with few changes is
compared with only decoding the same response.
"""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from bench.result import Result
from gpufleet.fleet.state import Fleet
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.source import SlurmSource
from gpufleet.sources.slurm.wire import AccountingRecord, JobRecord, NodeRecord, read_jobs, read_nodes

NODES, JOBS = 3000, 20_000
PERIOD = 15.0


class FakeClient:
    """Return the same cluster every time, except for a hundred jobs that started since."""

    def __init__(self) -> None:
        nodes = [{"name": f"n{i}", "gres": "gpu:a100:8(S:0-1)", "state": ["MIXED"]} for i in range(NODES)]
        self._nodes = json.dumps({"nodes": nodes, "errors": []}).encode()
        self._rows = [_job(number) for number in range(JOBS)]
        self.raw = self._encoded()

    def start_jobs(self, step: int) -> None:
        for number in range(100 * step, 100 * step + 100):
            self._rows[JOBS - 1 - number] = _job(number, placed=True) | {"job_id": JOBS - number}
        self.raw = self._encoded()

    async def jobs(self) -> tuple[JobRecord, ...]:
        return read_jobs(self.raw)

    async def nodes(self) -> tuple[NodeRecord, ...]:
        return read_nodes(self._nodes)

    async def accounting_jobs(self, since: float) -> tuple[AccountingRecord, ...]:
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


async def _refreshes() -> tuple[float, float, float]:
    client = FakeClient()
    source = SlurmSource(SlurmSettings(enabled=True), Fleet("bench"), client=client)
    started = time.process_time()
    await source.refresh()
    first = time.process_time() - started
    later, decoding = [], []
    for step in range(5):
        client.start_jobs(step)
        started = time.process_time()
        read_jobs(client.raw)
        decoding.append(time.process_time() - started)
        started = time.process_time()
        await source.refresh()
        later.append(time.process_time() - started)
    return first, min(later), min(decoding)


def measure() -> Iterable[Result]:
    """Yield the figures of one cluster."""
    first, later, decoding = asyncio.run(_refreshes())
    yield Result("Slurm, 20,000 GPU jobs: first refresh", first, "s CPU", at_most=10)
    yield Result("Slurm, 20,000 GPU jobs: later refresh", later, "s CPU")
    yield Result("Slurm: later refresh, share of a core", 100 * later / PERIOD, "%", at_most=5)
    yield Result("Slurm: later refresh relative to decoding", later / decoding, "×", at_most=3)
