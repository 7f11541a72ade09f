"""PostgreSQL: migrations, queries, the embedded server."""

from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.leadership import Leadership, lead
from gpufleet.store.store import Store, open_store

__all__ = ["Database", "Leadership", "Store", "lead", "open_store"]
