"""The command `gpufleet mcp`."""

import pytest

from gpufleet.cli import main


def test_the_command_has_no_listener_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["mcp", "--listen", "8090"])
    assert end.value.code == 2
    assert "unrecognized arguments: --listen" in capsys.readouterr().err
