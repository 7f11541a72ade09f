"""The PostgreSQL database for accounting and history."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class StoreSettings:
    """The database for accounting and history."""

    url: str = setting(
        "",
        "PostgreSQL 14 or newer, as postgresql://user@host/database. Empty: an embedded server in `data`.",
        env=["DATABASE_URL"],
        secret=True,
    )
    data: Path = setting(
        Path("gpufleet-data"),
        "Directory of the embedded server and other state.",
        flag="--data",
        env=["GPUFLEET_DATA"],
    )
    pool_size: int = setting(10, "Connections to the database.", minimum=2, maximum=100)
    query_timeout: float = setting(20.0, "Longest time for one query.", unit="s", minimum=0.1)
    start_timeout: float = setting(
        60.0, "How long the server waits for the database when it starts.", unit="s", minimum=1
    )
    clock_skew_warning: float = setting(
        5.0,
        "Difference between the clocks of the server and of the database from which the server is degraded.",
        unit="s",
        minimum=0.1,
    )
    max_clock_skew: float = setting(
        60.0,
        "Difference from which the server does not lead: it neither does the accounting nor prunes.",
        unit="s",
        minimum=1,
    )
