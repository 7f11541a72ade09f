import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager

import pytest
from tests.exporters.samples import CLUSTER, FILESYSTEMS, PAGES, exporter, scrape_config
from tests.prometheus_fixture import running_prometheus
from tests.victoriametrics_fixture import running_victoriametrics

from gpufleet.exporters.prometheus.client import MAX_ANSWER_BYTES
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.model.reading import Readings
from gpufleet.runtime.settings import MetricsSettings

_TWIN = PAGES["nvidia-smi"].replace(
    "df6e7a7c-7314-46f8-abc4-b88b36dcf3aa", "00000000-0000-0000-0000-000000000000"
)
WORLDS: Mapping[str, Mapping[str, str]] = {
    "everything": {**PAGES, "cluster": CLUSTER},
    **{name: {name: page} for name, page in PAGES.items()},
    "dcgm honored": {"dcgm": PAGES["dcgm"]},
    "percent": {"dcgm-new": PAGES["dcgm-new"].replace("} 0.5\n", "} 97\n")},
    "twins": {"dcgm": PAGES["dcgm"], "nvidia-smi": _TWIN},
    "filesystems": {"node": FILESYSTEMS},
}
"""What each Prometheus of the tests scrapes."""


@pytest.fixture(scope="session")
def worlds() -> Iterator[Mapping[str, str]]:
    """The address of a Prometheus for each world.

    All start together: each waits five seconds before its first scrape.
    """
    with ExitStack() as stack:
        urls = {}
        for name, pages in WORLDS.items():
            target = stack.enter_context(exporter(pages))
            config = scrape_config(target, pages, honor_labels=name.endswith("honored"))
            urls[name] = stack.enter_context(running_prometheus(config))
        yield urls


@pytest.fixture
def everything(worlds: Mapping[str, str]) -> str:
    """A Prometheus that scrapes all exporters."""
    return worlds["everything"]


@pytest.fixture(scope="session")
def victoria() -> Iterator[str]:
    """A VictoriaMetrics that scrapes all exporters."""
    pages = WORLDS["everything"]
    with exporter(pages) as target, running_victoriametrics(scrape_config(target, pages)) as url:
        yield url


@asynccontextmanager
async def opened(
    url: str, max_answer_bytes: int = MAX_ANSWER_BYTES, **settings: object
) -> AsyncIterator[PrometheusSource]:
    """A source whose background refresh stays out of the test's way."""
    values = {"refresh": 3600.0, "timeout": 5.0, **settings}
    own = MetricsSettings(url=url, **values)  # type: ignore[arg-type]
    async with PrometheusSource(own, detect=0.01, max_answer_bytes=max_answer_bytes) as source:
        yield source


async def until(source: PrometheusSource, enough: Callable[[Readings], bool]) -> Readings:
    """Return the first complete readings; Prometheus has to scrape first."""
    for _ in range(100):
        readings = await source.refresh()
        if enough(readings):
            return readings
        await asyncio.sleep(0.2)
    raise AssertionError(f"only {[gpu.ref for gpu in readings.gpus]} after 20 s; errors: {readings.errors}")
