"""The flags of `gpufleet mcp`."""

import pytest

from gpufleet.cli import main
from gpufleet.cli.mcp import _address


def test_the_listener_is_on_loopback_unless_another_address_is_given() -> None:
    assert _address("8090") == _address(":8090") == ("127.0.0.1", 8090)
    assert _address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert _address("[::1]:80") == ("[::1]", 80)


@pytest.mark.parametrize("text", ["", "localhost", "127.0.0.1:", "1:99999", "a:b"])
def test_a_wrong_address_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--listen", text]) == 2
    assert "--listen" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(
    capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    address = f"http://127.0.0.1:{unused_tcp_port}"
    assert main(["mcp", "--listen", "8090", "--server", address]) == 1
    assert "does not answer" in capsys.readouterr().err
