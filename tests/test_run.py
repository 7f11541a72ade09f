"""Test how the tests themselves are run: the order of files, temporary files, and `.ci/run`."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = f"""
PYTEST := {sys.executable} -m pytest -q
check:
test-long e2e:
	@$(PYTEST) other $(ARGS)
test: test-dashboard
	@$(PYTEST) tests $(ARGS)
test-dashboard:
	@echo dashboard >> dashboard; test ! -e broken
.PHONY: check test test-dashboard test-long e2e
"""
FLAKY = """
from pathlib import Path
def test_that_passes(): pass
def test_that_fails_once():
    marker = Path("failed")
    if not marker.exists():
        marker.touch()
        assert False
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project with `.ci/run`, whose tests all pass."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for folder in ("tests", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text("def test_it(): pass\n")
    return tmp_path


def run(project: Path) -> "subprocess.CompletedProcess[str]":
    """Run `.ci/run` as if it were not run by a test."""
    outside = ("PYTEST", "CI", "MAKE", "MFLAGS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    return subprocess.run([project / ".ci" / "run"], capture_output=True, text=True, env=env, check=False)


@pytest.mark.long
def test_a_test_that_passes_the_second_time_is_named_at_the_end(project: Path) -> None:
    (project / "tests" / "test_tests.py").write_text(FLAKY)
    done = run(project)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(
        "==> passed only the second time:\nmake test: tests/test_tests.py::test_that_fails_once\n"
    )
    assert (project / "dashboard").read_text() == "dashboard\n", "its unit tests ran twice"


@pytest.mark.long
def test_a_test_that_fails_twice_fails_the_run(project: Path) -> None:
    (project / "tests" / "test_tests.py").write_text("def test_it(): assert False\n")
    done = run(project)
    assert done.returncode != 0
    assert "once more: what failed in make test" in done.stdout
    assert "second time" not in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tests/test_tests.py", ""),
        ("broken", ""),
        ("conftest.py", "import no_such_module\n"),
    ],
    ids=["no tests", "the dashboard's tests", "a broken conftest"],
)
def test_what_is_not_a_failed_test_is_not_repeated(project: Path, file: str, content: str) -> None:
    (project / file).write_text(content)
    stale = project / ".pytest_cache" / "v" / "cache" / "lastfailed"
    stale.parent.mkdir(parents=True)
    stale.write_text('{\n  "other/test_other.py::test_it": true\n}')
    done = run(project)
    assert done.returncode != 0
    assert "once more" not in done.stdout


@pytest.mark.parametrize("programs_may_run", [True, False])
def test_temporary_files_are_in_memory_until_the_end(tmp_path: Path, programs_may_run: bool) -> None:
    memory, tools = tmp_path / "memory", tmp_path / "tools"
    for folder in (memory, tools):
        folder.mkdir()
    scripts = {
        "pytest": 'echo "TMPDIR=$TMPDIR $(stat -c %a "$TMPDIR" 2>/dev/null)" "$@"; exit 5',
        "df": "echo Avail; echo 4194304",
        "install": "exit 0" if programs_may_run else "exit 1",
    }
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(stat.S_IRWXU)
    if programs_may_run:
        (tools / "install").unlink()
    outside = ("TMPDIR", "MAKE", "MFLAGS", "WORKERS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    done = [".venv/.dev", "page-if-node", "browser-if-root"]
    old = [word for target in done for word in ("--old-file", target)]
    settings = [f"BIN={tools}", f"MEMORY={memory}", "ARGS=-k one"]
    made = subprocess.run(
        ["make", *old, "test-long", *settings],
        cwd=ROOT,
        env=env | {"PATH": f"{tools}:{env['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Error 5" in made.stderr
    assert "-n 3 --dist loadfile --no-loadscope-reorder -m long tests -k one" in made.stdout
    assert (f"TMPDIR={memory}/gpufleet." in made.stdout) == programs_may_run
    assert (" 711 " in made.stdout) == programs_may_run
    assert not list(memory.iterdir())


def test_the_list_of_the_longest_files_has_only_existing_ones() -> None:
    lines = (ROOT / "tests" / "longest_files.txt").read_text().splitlines()
    files = [line for line in lines if not line.startswith("#")]
    assert files
    assert [file for file in files if not (ROOT / "tests" / file).is_file()] == []
    assert len(set(files)) == len(files)
