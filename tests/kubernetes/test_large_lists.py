"""Lists that are too large, and lists that do not end."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.kubernetes.faulty_server import FAST, Fault, FaultyServer, line, opened, status
from tests.waiting import wait_until

from gpufleet.kubernetes import LEASES, Reflector
from gpufleet.kubernetes.client import client as kube_client
from gpufleet.kubernetes.client.errors import ServerFault, TooLarge


def endless(token: Callable[[int], str], items: int = 1) -> Callable[[web.Request], web.Response]:
    """Return a server whose list goes on after every page."""
    numbers = itertools.count(1)

    def page(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return status(410, "Expired")
        number = next(numbers)
        names = [f"gpu-{number}-{item}" for item in range(items)]
        body: dict[str, Any] = {
            "metadata": {"resourceVersion": "1", "continue": token(number)},
            "items": [{"metadata": {"name": name, "namespace": "default"}} for name in names],
        }
        return web.json_response(body)

    return page


@pytest.mark.parametrize("token", [lambda number: "same", lambda number: f"token-{number % 7}"])
async def test_a_list_whose_continue_token_repeats_is_an_error(token: Callable[[int], str]) -> None:
    server = FaultyServer()
    server.refuse = endless(token)
    async with server.serving(), server.client() as client:
        with pytest.raises(TooLarge, match="leases: the list does not end"):
            await client.list(LEASES)
    assert len(server.requests) <= 9


async def test_a_list_without_objects_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_client, "_MAX_PAGES", 100)
    server = FaultyServer()
    server.refuse = endless(str, items=0)
    async with server.serving(), server.client() as client:
        with pytest.raises(TooLarge, match="does not end"):
            await client.list(LEASES)
    assert len(server.requests) == 100


async def test_a_list_of_too_many_objects_is_an_error() -> None:
    server = FaultyServer()
    server.refuse = endless(str, items=100)
    async with server.serving(), server.client(max_objects=1000) as client:
        with pytest.raises(TooLarge, match=r"more than 1000 objects"):
            await client.list(LEASES)
    assert len(server.requests) == 11


async def test_objects_of_an_endless_list_do_not_accumulate() -> None:
    server = FaultyServer()
    await server.put("known")
    async with server.serving(), server.client(max_objects=1000) as client:
        reflector = Reflector(client, LEASES, timings=FAST)
        task = asyncio.create_task(reflector.run())
        try:
            await reflector.synced()
            server.refuse = endless(str, items=100)
            await server.put("new")
            server.compact()  # the watch ends, and its version is gone
            await server.put("new")
            await wait_until(lambda: reflector.state.lists >= 4)
            assert len(reflector.cache) < 1100
            assert "more than 1000 objects" in reflector.state.error
            server.refuse = lambda request: None
            await wait_until(lambda: reflector.state.watching)
            assert {item.metadata.name for item in reflector.cache} == {"known", "new"}
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_a_page_that_is_too_large_is_fetched_in_smaller_pages() -> None:
    server = FaultyServer()
    for number in range(40):
        await server.put(f"gpu-{number:02}", spec={"holderIdentity": "x" * 100_000})
    async with server.serving(), server.client(max_response_bytes=1 << 20) as client:
        found = await client.list(LEASES)
    assert len(found.items) == 40
    assert len(server.requests) < 15


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_response_that_is_too_large_is_refused_while_it_is_read(chunked: bool) -> None:
    sent = 0

    async def large(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        if not chunked:
            response.content_length = 1 << 30
        await response.prepare(request)
        for _ in range(1024):
            await response.write(b" " * (1 << 20))
            sent += 1
        return response

    server = FaultyServer()
    server.faults["GET"].append(large)
    async with server.serving(), server.client(max_response_bytes=4 << 20) as client:
        with pytest.raises(TooLarge, match=r"exceeds \d+ bytes"):
            await client.get(LEASES, "one-a", "default")
    assert sent < 64


async def test_the_text_of_an_error_is_read_up_to_a_limit() -> None:
    async def large(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        for _ in range(1024):
            await response.write(b" " * (1 << 20))
        return response

    server = FaultyServer()
    server.faults["GET"].extend([large] * 20)
    async with server.serving(), server.client() as client:
        with pytest.raises(ServerFault, match="HTTP 500"):
            await client.get(LEASES, "one-a", "default")


@asynccontextmanager
async def running(reflector: Reflector[Any]) -> AsyncIterator[None]:
    """Run a reflector; the block begins when it has listed once."""
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced()
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _versions(reflector: Reflector[Any]) -> dict[str, str]:
    return {item.metadata.name: item.metadata.resource_version for item in reflector.cache}


def flood(size: int) -> Fault:
    """Return a watch that adds objects without end."""

    async def watch(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        for number in itertools.count(1000):
            meta = {"name": f"gpu-{number}", "namespace": "default", "resourceVersion": str(number)}
            await response.write(line("ADDED", {"metadata": {**meta, "annotations": {"a": "x" * size}}}))
        return response

    return watch


async def one_event(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    """Send one event without end."""
    response = await opened(request)
    while True:
        await response.write(b"x" * (1 << 20))


@pytest.mark.parametrize(
    ("fault", "limits", "message"),
    [
        (flood(0), {"max_objects": 1000}, "more than 1000 objects"),
        (flood(100_000), {"max_cache_bytes": 4 << 20}, "4194304 bytes; raise kubernetes.max_cache_bytes"),
        (one_event, {}, "GET /apis/coordination.k8s.io/v1/leases: the watch sent an event of more than"),
    ],
)
async def test_objects_of_a_watch_without_end_do_not_accumulate(
    fault: Fault, limits: dict[str, int], message: str
) -> None:
    server = FaultyServer()
    await server.put("known")
    server.faults["WATCH"].append(fault)
    async with server.serving(), server.client(**limits) as client:
        reflector = Reflector(client, LEASES, timings=FAST)
        most, errors = 0, set[str]()

        def has_recovered() -> bool:
            nonlocal most
            most = max(most, len(reflector.cache))
            errors.add(reflector.state.error)
            return reflector.state.watching and reflector.state.lists > 1

        task = asyncio.create_task(reflector.run())
        try:
            await wait_until(has_recovered, interval=0)
            assert any(message in error for error in errors)
            assert most <= 4000
            assert {item.metadata.name for item in reflector.cache} == {"known"}
            assert client.cache_budget.used < 2000
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_a_list_of_objects_that_need_too_much_memory_is_an_error() -> None:
    server = FaultyServer()
    for number in range(40):
        await server.put(f"gpu-{number:02}", spec={"holderIdentity": "x" * 100_000})
    async with server.serving(), server.client(max_cache_bytes=1 << 20) as client:
        reflector = Reflector(client, LEASES, timings=FAST, page_size=5)
        task = asyncio.create_task(reflector.run())
        try:
            # The list is tried again and again; between two tries nothing of it is kept.
            await wait_until(
                lambda: "kubernetes.max_cache_bytes" in reflector.state.error and not len(reflector.cache)
            )
            await wait_until(lambda: client.cache_budget.used == 0)
        finally:
            task.cancel()
            await asyncio.wait((task,))


@pytest.mark.parametrize("verb", ["watch", "list"])
async def test_objects_that_grow_too_large_are_kept_as_they_were(verb: str) -> None:
    server = FaultyServer()
    for number in range(20):
        await server.put(f"gpu-{number:02}")
    async with server.serving(), server.client(max_cache_bytes=1 << 20) as client:
        reflector = Reflector(client, LEASES, timings=FAST)
        async with running(reflector):
            known = set(_versions(reflector))
            if verb == "list":
                server.refuse = lambda request: status(410, "Expired") if "watch" in request.query else None
            for number in range(20):
                await server.put(f"gpu-{number:02}", spec={"holderIdentity": "x" * 100_000})
            await wait_until(lambda: "raise kubernetes.max_cache_bytes" in reflector.state.error)
            assert set(_versions(reflector)) == known
            assert client.cache_budget.used < 1 << 20
            server.refuse = lambda request: None
            for number in range(20):
                await server.put(f"gpu-{number:02}")
            await wait_until(lambda: server.truth() == _versions(reflector))


async def test_responses_that_are_read_at_the_same_time_share_one_limit() -> None:
    server = FaultyServer()
    for name in ("a", "b", "c"):
        await server.put(name, spec={"holderIdentity": "x" * 3_000_000})
    async with server.serving(), server.client(max_response_bytes=4 << 20) as client:
        found = await asyncio.gather(
            *(client.get(LEASES, name, "default") for name in ("a", "b", "c")), return_exceptions=True
        )
        assert any(isinstance(each, TooLarge) for each in found)
        assert (await client.get(LEASES, "a", "default")).metadata.name == "a"
