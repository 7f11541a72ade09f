"""Export the cost and usage of a month in the FOCUS format of the FinOps Foundation.

  gpufleet focus --month 2026-10 --to ./billing
  gpufleet focus --month 2026-10 --format parquet --to s3://finops/gpufleet
  gpufleet focus --server https://fleet.example.com --token-file token --cluster prod

The file is focus-CLUSTER-MONTH.csv or .parquet, with one row per workload and day; an existing one is replaced. An
S3-compatible store is named by the variables that the AWS tools use: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL. Columns and sums: docs/focus.md.
"""

import argparse
import asyncio
import os
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
_MEDIA_TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; none is a setting."""
    parser.add_argument("--month", type=_month, default=_last_month(), help="in UTC (default: last month)")
    parser.add_argument("--format", choices=list(_MEDIA_TYPES), default="csv", help="default: csv")
    parser.add_argument(
        "--to", default=".", metavar="DIR|s3://BUCKET/PREFIX", help="where to write (default: this directory)"
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Export and print where the file is."""
    with open_client(arguments) as client:
        print(_export(client, arguments))
    return 0


def _export(client: Client, arguments: argparse.Namespace) -> str:
    cluster = re.sub(r"[^A-Za-z0-9._-]", "-", arguments.cluster)
    stem = f"focus-{cluster}-{arguments.month}" if cluster else f"focus-{arguments.month}"
    name = f"{stem}.{arguments.format}"
    remote = arguments.to.startswith("s3://")
    folder = None if remote else Path(arguments.to)
    try:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the rename is atomic.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".focus-") as scratch:
            file = Path(scratch) / "focus.csv"
            query = {"period": arguments.month, "cluster": None}
            client.save(Call(_PATH, {}, query, bytes), "text/csv", file)
            if arguments.format == "parquet":
                from gpufleet.focus.parquet import to_parquet

                to_parquet(file, file := Path(scratch) / "focus.parquet")
            if folder is None:
                return asyncio.run(_upload(arguments.to, name, file, _MEDIA_TYPES[arguments.format]))
            return str(file.rename(folder / name))
    except OSError as error:
        raise GpufleetError(f"can't write to {arguments.to}: {error.strerror or error}") from error


async def _upload(url: str, name: str, file: Path, media_type: str) -> str:
    from gpufleet.focus.s3 import S3Credentials, parse_s3_url, put_file

    bucket, prefix = parse_s3_url(url)
    key = f"{prefix}/{name}" if prefix else name
    await put_file(S3Credentials.from_environment(os.environ), bucket, key, file, media_type)
    return f"s3://{bucket}/{key}"


def _month(text: str) -> str:
    try:
        return f"{datetime.strptime(text, '%Y-%m'):%Y-%m}"
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a month such as 2026-10") from None


def _last_month() -> str:
    return f"{datetime.now(UTC).replace(day=1) - timedelta(days=1):%Y-%m}"
