"""Users' patterns for training logs are checked before anything starts."""

from pathlib import Path

import pytest

from gpufleet.cli import main


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["agent", "--port", "0"], ["agent", "--once"]])
@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("loss=(?P<loss>[", "missing ]"),
        ("(?P<loss>a)(?=b)", "no lookaround"),
        ("loss=([0-9]+)", "needs a named group"),
    ],
)
def test_a_bad_pattern_stops_the_start_with_the_setting_and_the_pattern(
    command: list[str], pattern: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gpufleet.toml"
    config.write_text(f"[training]\npatterns = ['^fine (?P<loss>[0-9]+)', '{pattern}']\n")
    assert main([*command, "--config", str(config)]) == 2
    shown = capsys.readouterr().err
    assert f"setting training.patterns: {pattern!r}" in shown
    assert problem in shown
