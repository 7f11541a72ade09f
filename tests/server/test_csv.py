"""CSV cells that a spreadsheet would run as a formula."""

import csv
import io

import msgspec
import pytest

from gpufleet.server.csv import as_csv


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_a_cell_or_column_that_begins_like_a_formula_gets_an_apostrophe(start: str) -> None:
    evil = start + "cmd()"
    encoded = as_csv(msgspec.json.encode([{"name": evil, evil: 1, "labels": {evil: "a"}}]))
    assert encoded is not None
    head, row = csv.reader(io.StringIO(encoded.decode(), newline=""))
    assert row[0] == "'" + evil
    assert head[1] == "'" + evil


def test_numbers_and_other_text_stay() -> None:
    encoded = as_csv(msgspec.json.encode([{"a": -1, "b": "x=1", "c": None}]))
    assert encoded == b"a,b,c\r\n-1,x=1,\r\n"
