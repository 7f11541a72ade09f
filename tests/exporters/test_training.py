from collections.abc import Sequence

import pytest

from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.exporters.prometheus.training import merged
from gpufleet.model.reading import TrainingPoint
from gpufleet.runtime.settings import MetricsSettings


class Pushed:
    """The numbers of one workload."""

    async def read(
        self, workload_uid: str, start: float, end: float, rank: int | None = None
    ) -> Sequence[TrainingPoint]:
        return [TrainingPoint("loss", 1.0, 5.0)] if workload_uid == "job" else []


def test_numbers_that_were_pushed_and_scraped_count_once() -> None:
    pushed = [TrainingPoint("loss", 1.0, 5.0, 0), TrainingPoint("loss", 0.5, 9.0, 0)]
    scraped = [
        TrainingPoint("accuracy", 0.9, 5.0, 0),
        TrainingPoint("loss", 1.1, 5.0, 0),
        TrainingPoint("loss", 0.7, 7.0, 0),
        TrainingPoint("loss", 2.0, 5.0),
    ]
    assert merged(pushed, scraped) == [
        TrainingPoint("accuracy", 0.9, 5.0, 0),
        TrainingPoint("loss", 2.0, 5.0),
        TrainingPoint("loss", 1.0, 5.0, 0),
        TrainingPoint("loss", 0.7, 7.0, 0),
        TrainingPoint("loss", 0.5, 9.0, 0),
    ]


async def test_pushed_numbers_are_returned_without_prometheus() -> None:
    settings = MetricsSettings(url="http://127.0.0.1:9", timeout=1.0)
    async with PrometheusSource(settings, pushed=Pushed()) as source:
        assert await source.training("job", 0, 10) == [TrainingPoint("loss", 1.0, 5.0)]
        with pytest.raises(MetricsUnavailable):
            await source.training("another", 0, 10)
