"""The shared HTTP port: probes, metrics, bodies, and how it closes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from tests.waiting import wait_until

from gpufleet.runtime.http_listener import HttpListener
from gpufleet.runtime.listening import address_of, bind


async def echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


@asynccontextmanager
async def open_listener(
    listener: HttpListener, drain: float = 0.0
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    listening = bind("127.0.0.1", 0)
    async with listener.serving(listening, drain=drain), aiohttp.ClientSession() as session:
        yield address_of(listening), session


async def test_probes_report_what_is_wrong() -> None:
    problem = "not yet"
    listener = HttpListener(
        metrics=lambda: b"a 1\n", ready=lambda: problem, posts={"/echo": echo}, max_body=8
    )
    async with open_listener(listener) as (url, session):
        for method, path, body, status, text in (
            ("GET", "/livez", b"", 200, "ok\n"),
            ("GET", "/readyz", b"", 503, "not yet\n"),
            ("GET", "/metrics", b"", 200, "a 1\n"),
            ("HEAD", "/metrics", b"", 200, ""),
            ("POST", "/echo", b"12345678", 200, "12345678"),
            ("POST", "/echo", b"123456789", 413, None),
            ("GET", "/echo", b"", 405, None),
            ("POST", "/metrics", b"", 405, None),
            ("GET", "/other", b"", 404, None),
        ):
            async with session.request(method, url + path, data=body) as answer:
                assert answer.status == status, path
                assert text in (None, await answer.text())
        problem = ""
        async with session.get(f"{url}/readyz") as answer:
            assert answer.status == 200


async def test_while_it_drains_it_answers_is_not_ready_and_announces_the_end() -> None:
    listener = HttpListener(metrics=bytes, posts={"/echo": echo})
    started, leave = asyncio.Event(), asyncio.Event()
    listening = bind("127.0.0.1", 0)
    url = address_of(listening)

    async def serve() -> None:
        async with listener.serving(listening, drain=60.0):
            started.set()
            await leave.wait()

    serving = asyncio.create_task(serve())
    await started.wait()
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        async with session.post(f"{url}/echo", data=b"before") as answer:
            assert "Connection" not in answer.headers
        leave.set()
        while True:
            async with session.get(f"{url}/readyz") as answer:
                if answer.status == 503:
                    break
        async with session.post(f"{url}/echo", data=b"late") as answer:
            assert (await answer.read(), answer.headers["Connection"]) == (b"late", "close")
    serving.cancel()
    await asyncio.wait((serving,))


async def test_a_request_in_flight_is_answered_before_the_port_closes() -> None:
    began, finish = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        began.set()
        await finish.wait()
        return web.Response(text="done")

    listener = HttpListener(metrics=bytes, posts={"/slow": slow})
    listening = bind("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:

        async def call() -> str:
            async with session.post(f"{address_of(listening)}/slow") as answer:
                return await answer.text()

        async with listener.serving(listening):
            answer = asyncio.create_task(call())
            await began.wait()
            asyncio.get_running_loop().call_later(0.1, finish.set)
        assert await answer == "done"


async def test_bodies_that_are_read_at_the_same_time_share_one_limit() -> None:
    """One address can use half of the memory for bodies, all together all of it; the rest is refused at once."""
    listener = HttpListener(metrics=bytes, posts={"/echo": echo}, max_body=8, max_bodies=32)

    async def slow(address: str) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writer.write(b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 8\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
        return writer

    async def status(address: str, body: bytes) -> int:
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        async with (
            aiohttp.ClientSession(connector=connector) as caller,
            caller.post(f"{url}/echo", data=body) as answer,
        ):
            return answer.status

    async with open_listener(listener) as (url, session):
        port = int(url.rpartition(":")[2])
        writers = [await slow("127.0.0.1") for _ in range(2)]
        await wait_until(lambda: _returns(status("127.0.0.1", b"12345678"), 429))
        assert await status("127.0.0.2", b"12345678") == 200
        writers += [await slow("127.0.0.2") for _ in range(2)]
        await wait_until(lambda: _returns(status("127.0.0.3", b"12345678"), 503))
        async with session.get(f"{url}/livez") as answer:
            assert answer.status == 200
        for writer in writers:
            writer.write(b"12345678")
        await wait_until(lambda: _returns(status("127.0.0.1", b"12345678"), 200))
        for writer in writers:
            writer.close()


async def _returns(status: Awaitable[int], expected: int) -> bool:
    return await status == expected
