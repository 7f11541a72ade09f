"""Scrape the agents of a cluster into the embedded metric source, as Prometheus would.

Every `metrics.refresh` seconds all agents are read, `MAX_SCRAPES` at a time, each within `metrics.timeout`
and up to `MAX_BYTES`. An agent that does not answer has no readings in that round; the others are not affected.
One server of a database runs this, the others read what it has stored.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import aiohttp

from gpufleet.errors import GpufleetError, MetricsUnavailable
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.exporters.scraping.combine import combined_processes, combined_readings
from gpufleet.exporters.scraping.endpoints import LABELS, AgentEndpoint, agent_endpoints
from gpufleet.exporters.scraping.exposition import AgentMetrics, LabelSet, decode
from gpufleet.kubernetes import ENDPOINT_SLICES, KubeClient, Reflector, Selection, WatchTimings
from gpufleet.model.reading import TrainingPoint
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import MetricsSettings

MAX_BYTES = 4 * 1024 * 1024
"""Largest answer of an agent: with 256 processes it has about 300 kB."""

_NAMED = 3
"""Agents that a message names."""

_Series = tuple[str, str, int | None, str]
_log = get_logger("scraping")


MAX_SCRAPES = 32
"""Agents read at the same time, which limits the memory of their answers."""


class AgentScraper:
    """Read the agents of one cluster; `run` it as a task."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        recorder: EmbeddedMetrics,
        settings: MetricsSettings,
        *,
        timings: WatchTimings = WatchTimings(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.time,
        max_scrapes: int = MAX_SCRAPES,
    ) -> None:
        """`namespace` is the one of the agents' Service."""
        self.failures = 0
        """Agents that could not be read, since the start."""
        self._slices = Reflector(client, ENDPOINT_SLICES, Selection(namespace, LABELS), timings=timings)
        self._recorder = recorder
        self._settings = settings
        self._max_scrapes = max_scrapes
        self._clock = clock
        self._labels: dict[str, Mapping[str, LabelSet]] = {}
        self._training: dict[_Series, float] = {}
        self._problem = ""

    async def run(self) -> None:
        """Read all agents every `metrics.refresh` seconds until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        connector = aiohttp.TCPConnector(limit=self._max_scrapes)
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            # Compression costs more than it saves within a cluster, and a small answer can't become a large one.
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        async with session, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._slices.run())
            await self._slices.synced()
            while True:
                started = time.monotonic()
                await self.scrape(session)
                await asyncio.sleep(max(0.0, self._settings.refresh - (time.monotonic() - started)))

    async def scrape(self, session: aiohttp.ClientSession) -> None:
        """Read all agents once and record what they answered."""
        endpoints = agent_endpoints(self._slices.cache)
        if not endpoints:
            return
        limit = asyncio.Semaphore(self._max_scrapes)

        async def limited(endpoint: AgentEndpoint) -> AgentMetrics:
            async with limit:
                return await self._read(session, endpoint)

        outcomes = await asyncio.gather(*map(limited, endpoints), return_exceptions=True)
        answers: dict[str, AgentMetrics] = {}
        failed: dict[str, str] = {}
        for endpoint, outcome in zip(endpoints, outcomes, strict=True):
            if isinstance(outcome, AgentMetrics):
                answers[endpoint.node] = outcome
            elif isinstance(outcome, MetricsUnavailable):
                failed[endpoint.node] = str(outcome)
            else:
                raise outcome
        self._labels = {node: answer.labels for node, answer in answers.items()}
        self.failures += len(failed)
        await self._record(list(answers.values()), self._errors(failed, len(endpoints)))

    async def _read(self, session: aiohttp.ClientSession, endpoint: AgentEndpoint) -> AgentMetrics:
        try:
            async with session.get(endpoint.url, allow_redirects=False) as response:
                if response.status != 200:
                    raise MetricsUnavailable(f"status {response.status}")
                body = await BodyReader(MAX_BYTES, MetricsUnavailable).read(response)
        except TimeoutError:
            raise MetricsUnavailable(f"no answer within {self._settings.timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise MetricsUnavailable(str(error) or type(error).__name__) from None
        known = self._labels.get(endpoint.node, {})
        return decode(body.decode(errors="replace"), endpoint.node, self._clock(), known)

    def _errors(self, failed: Mapping[str, str], total: int) -> dict[str, str]:
        """Return the error of this round, and log it when it changes."""
        named = [f"{node}: {reason}" for node, reason in list(failed.items())[:_NAMED]]
        more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        problem = (
            f"{len(failed)} of {total} agents could not be read ({'; '.join(named)}{more})" if failed else ""
        )
        if problem != self._problem:
            if problem:
                _log.warning("agents_not_read", agents=total, failed=len(failed), error=problem)
            else:
                _log.info("agents_read_again", agents=total)
        self._problem = problem
        return {"agents": problem} if problem else {}

    async def _record(self, answers: list[AgentMetrics], errors: Mapping[str, str]) -> None:
        try:
            # In a thread: for a thousand agents it takes a tenth of a second.
            readings = await asyncio.to_thread(combined_readings, answers, errors, self._clock())
            await self._recorder.record(readings)
            await self._recorder.record_processes(combined_processes(answers))
        except GpufleetError as error:  # the database is down: the next round has newer values
            _log.warning("readings_not_stored", error=str(error))
        await self._record_training(answers)

    async def _record_training(self, answers: list[AgentMetrics]) -> None:
        """Store the training numbers that are newer than those of the last round."""
        seen: dict[_Series, float] = {}
        for answer in answers:
            for workload, points in answer.training.items():
                new: list[TrainingPoint] = []
                for point in points:
                    series = (workload, point.metric, point.rank, point.source)
                    seen[series] = point.time
                    if point.time != self._training.get(series):
                        new.append(point)
                if new:
                    try:
                        await self._recorder.record_training(workload, new)
                    except GpufleetError as error:
                        _log.warning("training_not_stored", workload=workload, error=str(error))
        self._training = seen
