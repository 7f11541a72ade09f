"""Everything that is kept: one object with a part for each kind of thing.

A part is a module of this package with one class that takes the `Database`; to add one,
write the module with its queries, a migration with its tables, and a line in `Store`.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gpufleet.model.periods import CapacityPeriod, HoldingPeriod
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.ended_workloads import EndedWorkloads
from gpufleet.store.hours import KeptHours
from gpufleet.store.periods import KeptPeriods
from gpufleet.store.postgres.database import Database, open_database
from gpufleet.store.postgres.embedded import embedded_server, running_server
from gpufleet.store.postgres.leadership import Leadership
from gpufleet.store.postgres.migrate import upgrade
from gpufleet.store.readings import KeptReadings
from gpufleet.store.snapshots import KeptSnapshots
from gpufleet.store.statistics import KeptStatistics
from gpufleet.store.training import KeptTraining
from gpufleet.store.usage import UsageSums
from gpufleet.store.usage_series import UsageSeries
from gpufleet.store.workload_pages import WorkloadPages


class Store:
    """PostgreSQL, with a part for each kind of thing that is kept."""

    def __init__(self, database: Database, dsn: str, settings: StoreSettings) -> None:
        self.database = database
        self.readings = KeptReadings(database)
        self.training = KeptTraining(database)
        self.ended = EndedWorkloads(database)
        self.accounted = AccountedClusters(database)
        self.holdings = KeptPeriods(database, self.accounted, "holding", "pod_uid", HoldingPeriod)
        self.capacities = KeptPeriods(database, self.accounted, "capacity", "node", CapacityPeriod)
        self.snapshots = KeptSnapshots(database, self.accounted)
        self.hours = KeptHours(database, self.accounted)
        self.statistics = KeptStatistics(database, self.accounted)
        self.workload_pages = WorkloadPages(database, self.accounted)
        self.usage = UsageSums(database, self.accounted)
        self.usage_series = UsageSeries(database, self.accounted)
        self._dsn = dsn
        self._settings = settings

    def leadership(self, name: str) -> Leadership:
        """The right to do the job `name`, which one server of this database has at a time."""
        return Leadership(self._dsn, self._settings, name)

    async def ping(self) -> None:
        """Raise StoreUnavailable if the database does not answer."""
        await self.database.fetchval("SELECT 1")


@asynccontextmanager
async def open_store(settings: StoreSettings) -> AsyncIterator[Store]:
    """The store at `store.url`, or in an embedded server; its tables are brought up to date."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(server(settings))
        await upgrade(dsn, settings)
        database = await stack.enter_async_context(open_database(dsn, settings))
        yield Store(database, dsn, settings)


@asynccontextmanager
async def server(settings: StoreSettings, *, share: bool = False) -> AsyncIterator[str]:
    """Where the database is: `store.url`, or that of an embedded server which runs meanwhile.

    With `share`, an embedded server that another process of ours runs is used too.
    """
    if settings.url:
        yield settings.url
    elif share and (running := running_server(settings)):
        yield running
    else:
        async with embedded_server(settings) as embedded:
            yield embedded.dsn
