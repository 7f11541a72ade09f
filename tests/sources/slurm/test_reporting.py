"""A training script in a real Slurm job detects its workload and rank."""

import asyncio
import sys
from pathlib import Path

from tests.sources.slurm.real_cluster import Slurm
from tests.sources.slurm.test_source import jobs, slurm_source
from tests.training_server import training_server

from gpufleet.model.reading import TrainingPoint
from gpufleet.store import Store

SCRIPT = """
import time
from gpufleet.report import Reporter

report = Reporter(every=0.1)
report.log(step=1, loss=2.5)
until = time.monotonic() + 60
while not report.flush(1) and time.monotonic() < until:
    time.sleep(0.2)  # the server does not know this job yet
"""


async def test_srun_tasks_report_for_their_job_with_their_rank(
    slurm: Slurm, store: Store, tmp_path: Path
) -> None:
    source, fleet = slurm_source(slurm)
    script = slurm.folder / "train.py"
    script.write_text(SCRIPT)
    async with training_server(fleet, store) as url:
        with jobs(slurm):
            run = f"srun --ntasks=2 --export=ALL,GPUFLEET_URL={url} {sys.executable} {script}"
            job = slurm.submit(f"PATH={slurm.bin}:$PATH {run}", "--job-name=train", "--ntasks=2", "--gpus=2")
            async with asyncio.timeout(90):
                points: list[TrainingPoint] = []
                while len(points) < 4:
                    await source.refresh()
                    await asyncio.sleep(0.3)
                    uids = [w.uid for w in fleet.workloads().values() if w.name == "train"]
                    points = list(await store.training.read(uids[0], 0, 1e11)) if uids else []
    assert job
    assert {(point.metric, point.value, point.rank) for point in points} == {
        ("loss", 2.5, 0),
        ("loss", 2.5, 1),
        ("step", 1.0, 0),
        ("step", 1.0, 1),
    }
