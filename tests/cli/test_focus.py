"""`gpufleet focus` writes the file of a server to a folder."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.focus.test_rows import BERT, DAY

from gpufleet.cli import main
from gpufleet.focus import csv_file
from gpufleet.focus.rows import focus_rows

CSV = csv_file.header() + csv_file.encode(focus_rows(DAY, [BERT], BERT.amounts))


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async def focus(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer t0ken":
            return web.json_response({"code": 401, "message": "a token is needed"}, status=401)
        if request.query["period"] == "2026-09":
            problem = "accounting.currency of cluster prod is not set"
            return web.json_response({"code": 400, "message": problem}, status=400)
        assert dict(request.query) == {"period": "2026-10", "cluster": "prod"}
        return web.Response(body=CSV, content_type="text/csv")

    app = web.Application()
    app.router.add_get("/api/v1/gpu-aggregation/focus", focus)
    async with TestServer(app, host="127.0.0.1") as running:
        yield str(running.make_url("/"))


async def run(server: str, *words: str) -> int:
    flags = ["focus", "--server", server, "--cluster", "prod", *words]
    return await asyncio.to_thread(main, flags)


async def test_a_month_is_written_to_a_folder_as_csv(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUFLEET_TOKEN", "t0ken")
    folder = tmp_path / "new" / "folder"
    assert await run(server, "--month", "2026-10", "--to", str(folder)) == 0
    [file] = folder.iterdir()
    assert (file.name, file.read_bytes()) == ("focus-prod-2026-10.csv", CSV)
    assert capsys.readouterr().out == f"{file}\n"


@pytest.mark.parametrize("flags", [("--to", "s3://bills/gpu"), ("--format", "parquet")])
async def test_a_bucket_and_another_format_are_refused_before_anything_is_written(
    server: str,
    flags: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        await run(server, *flags)
    refused = capsys.readouterr().err
    assert ("upload it with the tool of the store" if flags[0] == "--to" else flags[0]) in refused
    assert os.listdir(tmp_path) == []


async def test_what_the_server_refuses_is_said_and_leaves_no_file(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUFLEET_TOKEN", "t0ken")
    assert await run(server, "--month", "2026-09", "--to", str(tmp_path)) == 1
    assert "accounting.currency of cluster prod is not set" in capsys.readouterr().err
    monkeypatch.delenv("GPUFLEET_TOKEN")
    assert await run(server, "--month", "2026-10", "--to", str(tmp_path)) == 1
    assert "a token is needed" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


async def test_a_server_that_does_not_answer_is_named(
    tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"http://127.0.0.1:{unused_tcp_port}"
    assert await run(address, "--to", str(tmp_path)) == 1
    assert f"no answer from {address}" in capsys.readouterr().err
