"""gpufleet login against a provider with the device flow, and the commands that use the saved token."""

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest

from gpufleet.cli import main
from gpufleet.errors import GpufleetError
from gpufleet.terminal.credentials import credentials_file, save_login, saved_server, saved_token
from gpufleet.terminal.device_login import DeviceCode, device_login


class Provider(BaseHTTPRequestHandler):
    """A provider with the device flow and a gpufleet server that accepts its token."""

    polls: list[str]
    answers: list[dict[str, object]]

    def do_GET(self) -> None:
        address = f"http://{self.headers['Host']}"
        if self.path == "/.well-known/openid-configuration":
            self._send(
                200,
                {
                    "issuer": address,
                    "token_endpoint": f"{address}/token",
                    "device_authorization_endpoint": f"{address}/device",
                },
            )
        else:
            known = self.headers.get("Authorization") == "Bearer the-token"
            names = {"user": "alice" if known else None, "role": "viewer" if known else None}
            self._send(200, {"data": {**names, "namespaces": None, "login": None, "signIn": "oidc"}})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self.path == "/device":
            assert form["client_id"] == ["cli"]
            code = {
                "device_code": "d",
                "user_code": "ABCD-EFGH",
                "verification_uri": "http://go",
                "interval": 0.01,
            }
            self._send(200, {**code, "expires_in": 60})
            return
        assert form["device_code"] == ["d"]
        self.polls.append(form["grant_type"][0])
        answer = self.answers.pop(0)
        self._send(400 if "error" in answer else 200, answer)

    def _send(self, status: int, body: object) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GPUFLEET_SERVER", raising=False)
    Provider.polls = []
    Provider.answers = [{"error": "authorization_pending"}, {"id_token": "the-token", "expires_in": 3600}]
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _login(provider: str) -> int:
    return main(["login", "--server", provider, "--issuer", provider, "--client-id", "cli"])


def test_a_login_shows_the_code_polls_and_saves_the_token(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(provider) == 0
    printed = capsys.readouterr()
    assert printed.err == "Open http://go and enter the code ABCD-EFGH.\n"
    assert f"Logged in to {provider} as alice (viewer)." in printed.out
    assert len(Provider.polls) == 2
    assert (saved_server(os.environ), saved_token(provider, os.environ)) == (provider, "the-token")
    assert stat.S_IMODE(credentials_file(os.environ).stat().st_mode) == 0o600
    assert saved_token("http://other", os.environ) == ""
    assert main(["login", "--delete"]) == 0
    assert saved_server(os.environ) == ""


def test_an_expired_token_is_not_used(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    save_login("http://fleet", "old", time.time() + 5, environ)
    assert saved_token("http://fleet", environ) == ""


def test_a_refusal_and_an_unknown_token_are_explained(
    provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Provider.answers = [{"error": "access_denied", "error_description": "Alice said no"}]
    assert _login(provider) == 1
    assert "the provider refused: Alice said no" in capsys.readouterr().err
    Provider.answers = [{"id_token": "another"}]
    assert _login(provider) == 2
    assert "does not accept the token; is cli in its oidc.audiences?" in capsys.readouterr().err
    assert saved_server(os.environ) == ""


def test_a_code_expires(provider: str) -> None:
    Provider.answers = [{"error": "slow_down"}, {"error": "authorization_pending"}]
    moments, pauses = iter([0.0, 1.0, 2.0, 100.0]), list[float]()
    shown: list[DeviceCode] = []
    with httpx.Client() as http, pytest.raises(GpufleetError, match="the code has expired"):
        device_login(
            http, provider, "cli", "openid", shown.append, pause=pauses.append, clock=lambda: next(moments)
        )
    assert pauses == [0.01, 5.01]
    assert shown[0].user_code == "ABCD-EFGH"


def test_login_needs_its_flags(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUFLEET_SERVER", raising=False)
    assert main(["login"]) == 2
    assert "login needs --server; see gpufleet login --help" in capsys.readouterr().err
