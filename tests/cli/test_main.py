import subprocess
import sys

import pytest

from gpufleet import __version__
from gpufleet.cli import main, serve
from gpufleet.cli.commands import COMMANDS
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


def test_the_help_of_serve_fits_a_screen_and_help_all_has_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    brief = capsys.readouterr().out
    assert len(brief.splitlines()) <= 42
    assert "--port PORT" in brief
    assert "(default: 8080)" in brief
    with pytest.raises(SystemExit):
        main(["serve", "--help-all"])
    everything = capsys.readouterr().out
    flags = [
        s.flag for n, cls in GROUPS.items() if cls in serve.GROUPS for s in settings_of(n, cls) if s.flag
    ]
    assert [
        flag for flag in flags if flag not in everything and flag.replace("--", "--[no-]") not in everything
    ] == []
    assert " more flags: gpufleet serve --help-all" in brief


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
