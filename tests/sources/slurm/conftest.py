"""One Slurm for all tests of this package, because it takes a second to start."""

from collections.abc import Iterator

import pytest
from tests.sources.slurm.real_cluster import GPUS, Slurm, running_slurm


@pytest.fixture(scope="package")
def slurm() -> Iterator[Slurm]:
    with running_slurm(shards=4 * GPUS) as running:
        yield running
