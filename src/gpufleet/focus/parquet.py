"""Convert a FOCUS file from CSV to Parquet."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpufleet.focus.columns import COLUMNS, VERSION, Column

_ROWS = 50_000
_TYPES = {
    "text": pa.string(),
    "decimal": pa.decimal128(38, 18),
    "time": pa.timestamp("ms", tz="UTC"),
}
SCHEMA = pa.schema(
    [pa.field(column.name, _TYPES[column.type]) for column in COLUMNS], metadata={"focus_version": VERSION}
)


def to_parquet(source: Path, target: Path) -> int:
    """Write the rows of the CSV file `source` to `target` and return their number."""
    count = 0
    with (
        source.open(newline="", encoding="utf-8") as file,
        pq.ParquetWriter(target, SCHEMA, compression="zstd") as writer,
    ):
        rows: Iterator[dict[str, str]] = csv.DictReader(file)
        while batch := list(islice(rows, _ROWS)):
            columns = [
                pa.array(
                    (_value(column, row.get(column.name)) for row in batch), SCHEMA.field(column.name).type
                )
                for column in COLUMNS
            ]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
            count += len(batch)
    return count


def _value(column: Column, text: str | None) -> Any:
    if not text:
        return None
    if column.type == "decimal":
        return Decimal(text)
    if column.type == "time":
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return text
