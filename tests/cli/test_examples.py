"""The shipped examples do what their pages say."""

from pathlib import Path

import pytest

from gpufleet.cli import main

TRACE = Path(__file__).parents[2] / "examples" / "trace"


def test_the_policies_differ_on_the_shipped_trace(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--nodes", str(TRACE / "nodes.csv"), "--pods", str(TRACE / "pods.csv")]
    assert main([*words, "--policy", "all"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    results = [tuple(line.split()[1:4]) for line in lines]
    assert len(results) >= 5
    assert len(set(results)) == len(results)
