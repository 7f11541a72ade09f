"""Parquet files have the types of the columns."""

from pathlib import Path

import pyarrow.parquet as pq

from gpufleet.focus.columns import NAMES
from gpufleet.focus.parquet import SCHEMA, to_parquet


def test_columns_that_a_server_of_another_version_lacks_are_null(tmp_path: Path) -> None:
    (tmp_path / "focus.csv").write_text("BilledCost,x_Unknown\r\n1.5,a\r\n")
    assert to_parquet(tmp_path / "focus.csv", tmp_path / "focus.parquet") == 1
    [row] = pq.read_table(tmp_path / "focus.parquet").to_pylist()
    assert tuple(row) == NAMES
    assert {name for name, value in row.items() if value is not None} == {"BilledCost"}


def test_a_month_without_use_is_a_file_with_a_schema(tmp_path: Path) -> None:
    (tmp_path / "focus.csv").write_text("BilledCost\r\n")
    assert to_parquet(tmp_path / "focus.csv", tmp_path / "focus.parquet") == 0
    assert pq.read_schema(tmp_path / "focus.parquet").names == SCHEMA.names
