"""Show the GPU-hours and the cost of a month by namespace, label, annotation or workload.

  gpufleet report                                       # this month by namespace
  gpufleet report 2026-10 --group-by label:team
  gpufleet report 2026-10-05..2026-10-11 -o csv > week.csv

The rows add up to the capacity of the cluster: docs/accounting.md says how hours are counted. To print a report or make a
PDF of it, print the usage page of the dashboard.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import InvalidRequest
from gpufleet.runtime.settings import Settings

if TYPE_CHECKING:
    from gpufleet.client import Client

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the period and the format."""
    from gpufleet.terminal.flags import add_connection_flags

    parser.add_argument(
        "period",
        metavar="PERIOD",
        nargs="?",
        default="",
        help="a month, a day or FIRST..LAST in UTC (default: this month)",
    )
    parser.add_argument(
        "--group-by",
        default="namespace",
        metavar="GROUP",
        help="namespace, workload, label:KEY or annotation:KEY (default: namespace)",
    )
    parser.add_argument(
        "--groups", type=int, default=0, metavar="N", help="only the N largest groups (default: all)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_format,
        choices=("table", "csv", "json"),
        default="table",
        help="default: table",
    )
    parser.add_argument(
        "-f", "--file", type=Path, metavar="FILE", help="write to FILE (default: standard output)"
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Fetch the report and write it."""
    from gpufleet.terminal.connection import open_client

    with open_client(arguments) as client:
        text = _report(client, arguments)
    if arguments.file is not None:
        try:
            arguments.file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"can't write {arguments.file}: {error.strerror}") from error
    else:
        sys.stdout.write(text)
    return 0


def _format(text: str) -> str:
    if text in ("html", "pdf"):
        raise argparse.ArgumentTypeError(
            f"there is no format {text}; print the usage page of the dashboard, which has the same rows and totals"
        )
    return text


def _report(client: "Client", arguments: argparse.Namespace) -> str:
    from gpufleet.client import calls
    from gpufleet.terminal.output import as_json
    from gpufleet.terminal.report import text_report
    from gpufleet.terminal.width import terminal_width

    period = arguments.period or time.strftime("%Y-%m", time.gmtime())
    call = calls.report(period=period, group_by=arguments.group_by, groups=arguments.groups)
    if arguments.output == "csv":
        return client.get_text(call, "text/csv")
    found = client.get(call)
    if arguments.output == "json":
        return as_json([found], single=True)
    return text_report(found, terminal_width() if arguments.file is None else 0)
