"""The store: one object with one attribute per kind of data.

Each attribute is a class of this package that takes the `Database`. To add one, write a module with its
queries, a migration with its tables, and a line in `Store`.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.ended_workloads import EndedWorkloads
from gpufleet.store.hours.namespace_use import NamespaceUses
from gpufleet.store.hours.statistics import StatisticsStore
from gpufleet.store.hours.usage import UsageSums
from gpufleet.store.hours.usage_series import UsageSeries
from gpufleet.store.hours.workload_pages import WorkloadPages
from gpufleet.store.hours.workload_use import WorkloadUses
from gpufleet.store.hours.writer import HourStore
from gpufleet.store.observed_spans import ObservedSpans
from gpufleet.store.periods import PeriodStore
from gpufleet.store.postgres.database import RETRY_TIMEOUT_S, Database, open_database
from gpufleet.store.postgres.embedded import embedded_server, running_server
from gpufleet.store.postgres.fence import Fence
from gpufleet.store.postgres.leadership import Leadership
from gpufleet.store.postgres.migrate import upgrade
from gpufleet.store.queue_rules import QueueRulesStore
from gpufleet.store.readings.readings import ReadingStore
from gpufleet.store.sent_reports import SentReports
from gpufleet.store.snapshots import SnapshotStore
from gpufleet.store.start_calibrations import StartCalibrations
from gpufleet.store.training import TrainingStore


class Store:
    """PostgreSQL, with one attribute per kind of data."""

    def __init__(
        self, database: Database, dsn: str, settings: StoreSettings, long_reads: Database | None = None
    ) -> None:
        """`long_reads` is a second pool for graphs, training numbers and reports; by default they share one."""
        self.database = database
        long_reads = long_reads or database
        self.readings = ReadingStore(database, long_reads)
        self.training = TrainingStore(database, long_reads)
        self.ended = EndedWorkloads(database)
        self.accounted = AccountedClusters(database)
        self.allocation_periods = PeriodStore(
            database, self.accounted, "holding", "pod_uid", AllocationPeriod
        )
        self.capacity_periods = PeriodStore(database, self.accounted, "capacity", "node", CapacityPeriod)
        self.queue_rules = QueueRulesStore(database, self.accounted)
        self.observed = ObservedSpans(database, self.accounted)
        self.snapshots = SnapshotStore(database, self.accounted)
        self.hours = HourStore(database, self.accounted)
        self.statistics = StatisticsStore(database, self.accounted)
        self.workload_pages = WorkloadPages(database, self.accounted)
        self.usage = UsageSums(long_reads, self.accounted)
        self.usage_series = UsageSeries(long_reads, self.accounted)
        self.namespace_use = NamespaceUses(long_reads, self.accounted)
        self.workload_uses = WorkloadUses(long_reads, self.accounted, self.usage)
        self.start_calibrations = StartCalibrations(database, lambda: self.fence("accounting"))
        self.sent_reports = SentReports(database)
        self._dsn = dsn
        self._settings = settings
        self._campaigns: dict[str, Leadership] = {}

    def leadership(self, name: str) -> Leadership:
        """Return the leadership for job `name`, which one server of this database holds at a time."""
        candidate = Leadership(self._dsn, self._settings, name, clock=self.database.clock)
        self._campaigns[name] = candidate
        return candidate

    def fence(self, job: str) -> Fence | None:
        """Return the fence of this server's work as the leader of a job; None if it does not lead."""
        candidate = self._campaigns.get(job)
        return candidate.fence if candidate is not None and candidate.held else None


@asynccontextmanager
async def open_store(
    settings: StoreSettings, *, retry_timeout: float = RETRY_TIMEOUT_S
) -> AsyncIterator[Store]:
    """Open the store at `store.url` or in an embedded server, and migrate its tables."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(open_server(settings))
        await upgrade(dsn, settings)
        database = await stack.enter_async_context(open_database(dsn, settings, retry_timeout=retry_timeout))
        long_reads = await stack.enter_async_context(
            open_database(dsn, settings, long_reads=True, retry_timeout=retry_timeout)
        )
        yield Store(database, dsn, settings, long_reads)


@asynccontextmanager
async def open_server(settings: StoreSettings, *, share: bool = False) -> AsyncIterator[str]:
    """Yield the DSN of the database: `store.url`, or an embedded server that runs until the context exits.

    With `share`, use an embedded server that another gpufleet process already runs.
    """
    if settings.url:
        yield settings.url
    elif share and (running := running_server(settings)):
        yield running
    else:
        async with embedded_server(settings) as embedded:
            yield embedded.dsn
