"""Export the cost and usage of a month in the FOCUS format of the FinOps Foundation.

  gpufleet focus --month 2026-10 --to ./billing
  gpufleet focus --server https://fleet.example.com --token-file token --cluster prod

The file is focus-CLUSTER-MONTH.csv, with one row per workload and day; an existing one is replaced. Columns, sums,
upload to a bucket and conversion to Parquet: docs/focus.md.
"""

import argparse
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpufleet.client import Client
from gpufleet.client.call import Call
from gpufleet.errors import GpufleetError
from gpufleet.runtime.settings import Settings
from gpufleet.terminal.connection import open_client
from gpufleet.terminal.flags import add_connection_flags

GROUPS: tuple[type, ...] = ()
_PATH = "/api/v1/gpu-aggregation/focus"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; none is a setting."""
    parser.add_argument("--month", type=_month, default=_last_month(), help="in UTC (default: last month)")
    parser.add_argument(
        "--to", type=_folder, default=".", metavar="DIR", help="where to write (default: this directory)"
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Export and print where the file is."""
    with open_client(arguments) as client:
        print(_export(client, arguments))
    return 0


def _export(client: Client, arguments: argparse.Namespace) -> Path:
    cluster = re.sub(r"[^A-Za-z0-9._-]", "-", arguments.cluster)
    stem = f"focus-{cluster}-{arguments.month}" if cluster else f"focus-{arguments.month}"
    folder: Path = arguments.to
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the rename is atomic.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".focus-") as scratch:
            file = Path(scratch) / "focus.csv"
            query = {"period": arguments.month, "cluster": None}
            client.save(Call(_PATH, {}, query, bytes), "text/csv", file)
            return file.rename(folder / f"{stem}.csv")
    except OSError as error:
        raise GpufleetError(f"can't write to {folder}: {error.strerror or error}") from error


def _folder(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a folder; write the file to one and upload it with the tool of the store, "
            "such as `aws s3 cp`"
        )
    return Path(text)


def _month(text: str) -> str:
    try:
        return f"{datetime.strptime(text, '%Y-%m'):%Y-%m}"
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a month such as 2026-10") from None


def _last_month() -> str:
    return f"{datetime.now(UTC).replace(day=1) - timedelta(days=1):%Y-%m}"
