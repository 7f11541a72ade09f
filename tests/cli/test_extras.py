"""Installs by role: each extra has all that its commands import, and a missing one is named."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from gpufleet.cli.commands import COMMANDS

pytestmark = pytest.mark.long

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
MODULES = {
    "get": ("gpufleet.terminal.get", "gpufleet.terminal.connection", "gpufleet.client", "yaml"),
    "top": ("gpufleet.terminal.top.app", "gpufleet.terminal.connection"),
    "fit": ("gpufleet.terminal.fit", "gpufleet.terminal.connection"),
    "report": ("gpufleet.terminal.report", "gpufleet.terminal.connection"),
    "login": ("gpufleet.terminal.device_login", "gpufleet.terminal.credentials"),
    "demo": ("gpufleet.demo.control_plane", "gpufleet.demo.demo_fleet", "gpufleet.server.wiring.assemble"),
    "serve": ("gpufleet.server.wiring.assemble", "gpufleet.server.http.server", "uvloop"),
    "agent": ("gpufleet.agent.process",),
    "diag": ("gpufleet.cli.diag", "gpufleet.gpus.load_test.run", "pynvml"),
    "scheduler": ("gpufleet.scheduler.process", "uvloop"),
    "webhook": ("gpufleet.webhook.process", "gpufleet.webhook.configuration", "yaml", "uvloop"),
    "repair": ("gpufleet.repair.process", "uvloop"),
    "nodes": ("gpufleet.cli.nodes", "gpufleet.kubernetes", "msgspec"),
    "simulate": ("gpufleet.cli.simulate",),
    "explain": ("gpufleet.kubernetes", "gpufleet.server.claim_view", "msgspec"),
    "focus": ("gpufleet.terminal.connection",),
    "mcp": ("gpufleet.mcp.server", "gpufleet.mcp.fleet_api"),
    "completion": ("gpufleet.cli.completion",),
    "db": ("gpufleet.cli.db", "gpufleet.server.wiring.maintenance"),
}
"""What each command imports when it runs."""

HIDE = """
import sys
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name.partition(".")[0] in {names} else find_spec(name, *rest)
)
"""


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _distributions(extra: str) -> set[str]:
    """The distributions that an extra installs, with all that they need in turn."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    found: set[str] = set()
    waiting = list(extras[extra])
    while waiting:
        requirement = waiting.pop()
        if own := re.fullmatch(r"gpufleet\[(.+)\]", requirement):
            waiting += [each for name in own[1].split(",") for each in extras[name]]
        elif "extra ==" not in requirement and (name := _name(requirement)) not in found:
            found.add(name)
            try:
                waiting += _requirements(name, requirement)
            except PackageNotFoundError:
                continue
    return found


def _requirements(name: str, requirement: str) -> list[str]:
    """What a distribution requires, with the extras that `requirement` names, as in `pyjwt[crypto]`."""
    named = re.match(r"[A-Za-z0-9._-]+\[([^]]+)\]", requirement)
    extras = named[1].split(",") if named else []
    found = []
    for each in requires(name) or ():
        condition = re.search(r"extra == ['\"]([^'\"]+)['\"]", each)
        if condition is None:
            found.append(each)
        elif condition[1] in extras:
            found.append(each.partition(";")[0])
    return found


def _hidden(installed: set[str]) -> set[str]:
    """The modules of this environment that belong to no installed distribution."""
    own = {"gpufleet", "kubelite", "_distutils_hack", "pkg_resources", "setuptools", "pip"}
    return {
        module
        for module, owners in packages_distributions().items()
        if module not in own and not installed & {_name(owner) for owner in owners}
    }


def _python(hidden: set[str], code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    hide = HIDE.format(names=sorted(hidden))
    return subprocess.run(
        [sys.executable, "-c", hide + code, *words], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_extra_of_a_command_has_all_that_it_imports(command: str) -> None:
    hidden = _hidden(_distributions(COMMANDS[command].extra))
    modules = ("gpufleet.cli.start", f"gpufleet.cli.{command}", *MODULES[command])
    done = _python(hidden, f"import {', '.join(modules)}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_extra_names_what_to_install(command: str) -> None:
    code = "from gpufleet.cli import main; sys.exit(main(sys.argv[1:]))"
    done = _python(_hidden(set()), code, command, "--help")
    assert done.returncode == 1
    extra = COMMANDS[command].extra
    assert done.stderr == (
        f"gpufleet {command} needs more packages: pip install 'gpufleet[{extra}]' (no module 'structlog')\n"
    )


def test_a_package_that_is_missing_only_when_the_command_runs_is_named_too(tmp_path: Path) -> None:
    code = "from gpufleet.cli import main; sys.exit(main(sys.argv[1:]))"
    done = _python({"uvicorn"}, code, "serve", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "gpufleet serve needs more packages: pip install 'gpufleet[server]'" in done.stderr


def test_the_reporter_needs_the_standard_library_only() -> None:
    code = "from gpufleet.report import Reporter; print(sorted({n.partition('.')[0] for n in sys.modules} - sys.stdlib_module_names - {'__main__', '_distutils_hack'}))"
    done = _python(_hidden(set()), code)
    assert done.stdout.split() == ["['gpufleet']"], done.stderr
