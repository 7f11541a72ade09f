"""Names of training metrics that callers may report."""

import msgspec
import pytest

from gpufleet.server.routes.live.training import ReportedRow


@pytest.mark.parametrize("name", ["a\n", "a\nb", "\na", "", "a" * 129, "a\r", "é"])
def test_a_name_with_a_line_feed_or_other_odd_text_is_refused(name: str) -> None:
    row = {"metric": name, "value": 1.0, "timestamp": 0}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(row, ReportedRow)


def test_other_names_are_accepted() -> None:
    for name in ("loss", "train/loss (ema)", "a" * 128):
        assert msgspec.convert({"metric": name, "value": 1.0, "timestamp": 0}, ReportedRow).metric == name
