"""Log lines, repeated warnings, and lines that can't be written."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from gpufleet.runtime.background import Background
from gpufleet.runtime.logs import RepeatedWarnings, configure_logs, get_logger


@contextmanager
def errors_into(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard error in a file, as a shell's `2>path` puts it there."""
    with path.open("a") as file:
        monkeypatch.setattr(sys, "stderr", file)
        yield
        monkeypatch.undo()
        try:
            file.close()
        except OSError:
            assert path == Path("/dev/full")


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_line_that_can_not_be_written_is_lost_without_harm(
    style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with errors_into(Path("/dev/full"), monkeypatch):
        configure_logs("info", style)
        for number in range(1000):
            get_logger("test").info("a disk is full", number=number)


def test_invalid_unicode_is_logged_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with errors_into(tmp_path / "log", monkeypatch):
        configure_logs("info", "json")
        get_logger("test").info("a file", name=b"caf\xe9".decode("utf-8", "surrogateescape"))
    logged = msgspec.json.decode((tmp_path / "log").read_bytes().replace(b"\\udce9", b"?"))
    assert (logged["event"], logged["name"], logged["component"]) == ("a file", "caf?", "test")


async def test_background_tasks_survive_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    again = asyncio.Event()

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries > 2:
            again.set()
        raise RuntimeError("broken")

    with errors_into(Path("/dev/full"), monkeypatch):
        configure_logs("info", "json")
        async with Background(first_backoff=0.001) as background:
            background.start("work", work)
            async with asyncio.timeout(30):
                await again.wait()


def test_a_repeated_warning_is_logged_at_growing_intervals_and_immediately_when_it_changes() -> None:
    clock = [0.0]
    warnings = RepeatedWarnings(get_logger("test"), lambda: clock[0])
    with capture_logs() as lines:
        logged = []
        for second in range(1000):
            clock[0] = float(second)
            before = len(lines)
            warnings.warn("lease a", "not released", error="503" if second < 500 else "403")
            if len(lines) > before:
                logged.append(second)
        assert logged == [0, 30, 90, 210, 450, 500, 530, 590, 710, 950]
        warnings.clear("lease a")
        warnings.warn("lease a", "not released", error="403")
        warnings.warn("lease b", "not released", error="403")
        assert len(lines) == 12
    assert {line["log_level"] for line in lines} == {"warning"}
    assert lines[-1]["error"] == "403"


def test_the_memory_of_repeated_warnings_is_bounded() -> None:
    warnings = RepeatedWarnings(get_logger("test"))
    with capture_logs() as lines:
        for _ in range(2):
            for number in range(2000):
                warnings.warn(f"lease {number}", "not released")
        assert len(lines) == 2000
        for number in range(10_000):
            warnings.warn(f"pod {number}", "not released")
    assert len(warnings._logged) <= 4096
