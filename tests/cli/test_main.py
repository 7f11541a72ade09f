import subprocess
import sys

import pytest

from gpufleet import __version__
from gpufleet.cli import agent, main, serve
from gpufleet.cli.commands import COMMANDS
from gpufleet.runtime.settings import AgentSettings, Settings
from gpufleet.runtime.settings.field import settings_of
from gpufleet.runtime.settings.groups import GROUPS


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"  {name} " not in shown] == []


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpufleet {__version__}\n"


def test_an_unknown_command_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "did you mean 'serve'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_starts_with_what_it_takes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 0
    assert lines[0].startswith(f"usage: gpufleet {name}")
    assert lines[0].endswith("[FLAGS]")
    assert lines[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"\n  gpufleet {name} " in capsys.readouterr().out.replace(
        f"gpufleet {name}\n", f"gpufleet {name} \n"
    )


def test_the_help_of_serve_fits_a_screen_and_has_every_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    brief = capsys.readouterr().out
    assert len(brief.splitlines()) <= 42
    assert "--port PORT" in brief
    assert "(default: 8080)" in brief
    flags = [
        s.flag for n, cls in GROUPS.items() if cls in serve.GROUPS for s in settings_of(n, cls) if s.flag
    ]
    assert [flag for flag in flags if flag not in brief and flag.replace("--", "--[no-]") not in brief] == []
    assert "--set GROUP.NAME=VALUE" in brief


def started(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Run `gpufleet agent` as far as its settings, and return them."""
    found: list[Settings] = []

    def run(settings: Settings, _: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(agent, "run", run)
    assert main(["agent", *words]) == 0
    return found[0]


def test_set_takes_a_setting_by_its_name_and_the_last_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--set", "agent.period=1m", "--set", "agent.dra=true", "--port", "1", "--set", "agent.port=2"]
    settings = started([*words, "--set=agent.period=2m"], monkeypatch)[AgentSettings]
    assert (settings.period, settings.dra, settings.port) == (120.0, True, 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--set", "agent.perod=1s"],
            "gpufleet agent has no setting agent.perod; did you mean agent.period?",
        ),
        (["--set", "server.port=1"], "gpufleet agent has no setting server.port"),
        (["--set", "agent.period"], "agent.period: write GROUP.NAME=VALUE"),
        (["--agent-period", "1s"], "no flag --agent-period; write --set agent.period=VALUE"),
        (["--agent-period=1s"], "no flag --agent-period; write --set agent.period=1s"),
        (["--no-devices-kernel-log"], "write --set devices.kernel_log=false"),
    ],
)
def test_a_setting_that_is_not_taken_is_refused_with_what_to_write(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["agent", *words])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_removed_setting_is_named_in_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUFLEET_AGENT_HEARTBEAT", "1m")
    started([], monkeypatch)
    [line] = capsys.readouterr().err.splitlines()
    assert "setting agent.heartbeat is no longer needed; its value 10m is built in" in line
    assert "environment variable GPUFLEET_AGENT_HEARTBEAT" in line


def test_a_wrong_value_of_set_names_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--set", "agent.period=soon"]) == 2
    assert "setting agent.period: 'soon' from flag --set is wrong" in capsys.readouterr().err


def test_set_refuses_secrets_without_their_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["repair", "--set", "alerts.webhook=https://hooks/key"])
    refusal = capsys.readouterr().err
    assert "alerts.webhook is a secret and command lines are public; set GPUFLEET_ALERTS_WEBHOOK" in refusal
    assert "hooks/key" not in refusal


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from gpufleet.cli import main; main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {
        "starlette",
        "msgspec",
        "aiohttp",
        "asyncpg",
        "numpy",
        "uvicorn",
        "structlog",
        "argparse",
    }


def test_binding_an_address_imports_no_web_framework() -> None:
    code = "import sys, gpufleet.runtime.listening; print(any(name in sys.modules for name in ('aiohttp', 'starlette', 'uvicorn')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
