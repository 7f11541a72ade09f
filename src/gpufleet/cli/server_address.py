"""The flags of commands that talk to a gpufleet server: its address and a token."""

import argparse
import os
from pathlib import Path

from gpufleet.errors import SettingsError


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add --server and --token-file."""
    parser.add_argument(
        "--server",
        default=os.environ.get("GPUFLEET_SERVER", "http://127.0.0.1:8080"),
        metavar="URL",
        help="address of the gpufleet server (default: $GPUFLEET_SERVER, else http://127.0.0.1:8080)",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with a bearer token (default: $GPUFLEET_TOKEN)"
    )


def token_of(arguments: argparse.Namespace) -> str:
    """Return the token, empty without one."""
    file: Path | None = arguments.token_file
    if file is None:
        return os.environ.get("GPUFLEET_TOKEN", "")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--token-file: can't read {file}: {error}") from error
