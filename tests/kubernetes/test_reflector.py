"""The cache converges to the server's state under any fault, without flooding the server."""

import asyncio
import dataclasses
import gc
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psutil
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kubernetes import faulty_server as faults
from tests.kubernetes.faulty_server import FAST, Fault, FaultyServer, answer
from tests.waiting import wait_until

from gpufleet.kubernetes import (
    LEASES,
    CacheChange,
    Connection,
    KubeClient,
    Reflector,
    Selection,
    WatchTimings,
)
from gpufleet.kubernetes.objects import Lease
from kubelite import KubeLite

LIST_FAULTS: dict[str, Fault] = {
    "cut": faults.cut,
    "500": answer(500, "InternalError"),
    "403": answer(403, "Forbidden"),
    "429": answer(429, "TooManyRequests", Retry_After="0"),
    "410": answer(410, "Expired"),
}
WATCH_FAULTS: dict[str, Fault] = {
    "cut": faults.cut,
    "500": answer(500, "InternalError"),
    "410": answer(410, "Expired"),
    "end": faults.end_at_once,
    "half a line": faults.half_a_line,
    "garbage": faults.garbage,
    "gone": faults.gone_in_the_middle,
    "one event": faults.one_event_then_cut,
}


class Replica:
    """A listener that rebuilds the set of objects from the changes and checks each change."""

    def __init__(self) -> None:
        self.items: dict[str, Lease] = {}
        self.batches = 0

    def __call__(self, changes: Sequence[CacheChange[Lease]]) -> None:
        self.batches += 1
        for change in changes:
            name = change.object.metadata.name
            assert self.items.get(name) == change.before
            if change.after is None:
                del self.items[name]
            else:
                self.items[name] = change.after

    def versions(self) -> dict[str, str]:
        return {name: item.metadata.resource_version for name, item in self.items.items()}


class Followed:
    """A server, a reflector and a listener."""

    def __init__(self, server: FaultyServer, reflector: Reflector[Lease], replica: Replica) -> None:
        self.server = server
        self.reflector = reflector
        self.replica = replica

    def versions(self) -> dict[str, str]:
        return {item.metadata.name: item.metadata.resource_version for item in self.reflector.cache}

    async def converges(self) -> None:
        await wait_until(lambda: self.versions() == self.server.truth())
        assert self.replica.versions() == self.server.truth()


@asynccontextmanager
async def following(
    server: FaultyServer, *, page_size: int = 500, within: float = 5.0, timings: WatchTimings = FAST
) -> AsyncIterator[Followed]:
    async with server.serving(), server.client(within) as client:
        reflector = Reflector(client, LEASES, page_size=page_size, timings=timings)
        replica = Replica()
        reflector.subscribe(replica)
        task = asyncio.create_task(reflector.run())
        try:
            yield Followed(server, reflector, replica)
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_a_list_is_fetched_in_pages_and_followed_by_a_watch() -> None:
    server = FaultyServer()
    for number in range(25):
        await server.put(f"gpu-{number:02}")
    async with following(server, page_size=10) as followed:
        await followed.reflector.synced()
        await followed.converges()
        await wait_until(lambda: followed.reflector.state.watching)
        assert [verb for verb, _ in server.requests] == ["GET", "GET", "GET", "WATCH"]
        await server.put("gpu-03")
        await server.remove("gpu-04")
        await server.put("new")
        await followed.converges()
        assert len(server.requests) == 4
        state = followed.reflector.state
        assert (state.synced, state.watching, state.lag, state.error) == (True, True, 0.0, "")
        assert state.resource_version == str(server.version)


@pytest.mark.parametrize("name", sorted(WATCH_FAULTS))
async def test_a_broken_watch_loses_nothing(name: str) -> None:
    server = FaultyServer()
    await server.put("a")
    await server.put("b")
    server.faults["WATCH"].append(WATCH_FAULTS[name])
    async with following(server) as followed:
        await followed.reflector.synced()
        await server.put("a")
        await server.remove("b")
        await server.put("c")
        await followed.converges()
        await wait_until(lambda: followed.reflector.state.watching)
        lists = sum(verb == "GET" for verb, _ in server.requests)
        assert lists == (2 if name in ("410", "gone") else 1), "only a forgotten version costs another list"
        assert len(server.requests) <= 5


async def test_objects_deleted_before_a_new_list_are_removed() -> None:
    server = FaultyServer()
    for name in "abc":
        await server.put(name)
    async with following(server) as followed:
        await wait_until(lambda: followed.reflector.state.watching)
        server.faults["WATCH"].append(answer(410, "Expired"))
        server.faults["GET"].append(answer(500, "InternalError"))
        await server.remove("a")
        await server.put("d")
        server.compact()
        await followed.converges()


async def test_a_recreated_object_is_deleted_and_added() -> None:
    server = FaultyServer()
    await server.put("a")
    server.faults["WATCH"].append(answer(410, "Expired"))
    async with following(server) as followed:
        await followed.reflector.synced()
        first = followed.replica.items["a"].metadata.uid
        await server.remove("a")
        await server.put("a")
        changes: list[CacheChange[Lease]] = []
        followed.reflector.subscribe(changes.extend)
        await followed.converges()
        kinds = [(change.before is not None, change.after is not None) for change in changes]
        assert kinds[-2:] == [(True, False), (False, True)]
        assert followed.replica.items["a"].metadata.uid != first


async def test_a_list_is_fetched_in_one_piece_if_its_continue_token_expires() -> None:
    server = FaultyServer()
    for number in range(30):
        await server.put(f"gpu-{number:02}")

    async def first_page_then_compact(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        page = server.list(request)
        await server.put("late")
        server.compact()
        return page

    server.faults["GET"].append(first_page_then_compact)
    async with following(server, page_size=10) as followed:
        await followed.converges()
        assert ["limit" in path for verb, path in server.requests if verb == "GET"] == [True, True, False]


async def test_a_request_without_a_response_times_out_and_is_retried() -> None:
    server = FaultyServer()
    await server.put("a")
    server.faults["GET"].append(faults.hang)
    server.faults["WATCH"].append(faults.hang)
    async with following(server, within=0.4) as followed:
        await followed.converges()
        await server.put("b")
        await followed.converges()
        assert len(server.requests) <= 10


async def test_a_silent_watch_is_closed_after_the_idle_timeout() -> None:
    server = FaultyServer()
    await server.put("a")
    server.faults["WATCH"].append(faults.fall_silent)
    async with following(server, timings=dataclasses.replace(FAST, idle_timeout=0.5)) as followed:
        await wait_until(lambda: followed.reflector.state.watching)
        await server.put("a")
        await followed.converges()
        assert [verb for verb, _ in server.requests][:3] == ["GET", "WATCH", "WATCH"]


async def test_a_watch_resumes_after_a_server_restart_without_a_new_list() -> None:
    server = FaultyServer()
    await server.put("a")
    async with server.serving() as url:
        port = int(url.rpartition(":")[2])
    async with server.client() as client:
        reflector = Reflector(client, LEASES, timings=FAST)
        task = asyncio.create_task(reflector.run())
        async with server.serving(port=port):
            await wait_until(lambda: reflector.state.watching)
        await wait_until(lambda: not reflector.state.watching)
        await server.put("b")
        assert reflector.cache.get("b", "default") is None
        async with server.serving(port=port):
            await wait_until(lambda: reflector.cache.get("b", "default") is not None)
            assert reflector.state.lists == 1
            task.cancel()
            await asyncio.wait((task,))


async def test_a_server_that_lost_its_history_is_listed_again() -> None:
    made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    async with KubeLite() as server:
        port = int(server.url.rpartition(":")[2])
        client = KubeClient(Connection(server.url, token=server.token))
        for name in "abcdefgh":
            await client.write_json("POST", path, {**made, "metadata": {"name": name}})
        reflector = Reflector(client, LEASES, Selection(namespace="default"), timings=FAST)
        task = asyncio.create_task(reflector.run())
        await wait_until(lambda: reflector.state.watching)
    async with KubeLite(port=port, tokens=server.tokens), client:
        await client.write_json("POST", path, {**made, "metadata": {"name": "new"}})
        await wait_until(lambda: reflector.cache.keys() == {("default", "new")})
        task.cancel()
        await asyncio.wait((task,))


async def test_requests_stay_few_while_every_watch_fails_immediately() -> None:
    server = FaultyServer()
    await server.put("a")
    server.faults["WATCH"].extend([faults.end_at_once] * 10_000)
    async with following(server) as followed:
        await followed.reflector.synced()
        before, began = len(server.requests), time.monotonic()
        await wait_until(lambda: len(server.requests) >= before + 40)
        # Real time: the maximum backoff is 10 to 20 ms. A busy loop makes 40 requests in a few milliseconds.
        assert time.monotonic() - began > 0.25


async def test_ten_thousand_events_arrive_in_few_batches() -> None:
    server = FaultyServer()
    async with following(server) as followed:
        await wait_until(lambda: followed.reflector.state.watching)
        for number in range(10_000):
            name = f"gpu-{number % 700:03}"
            if number % 10 == 9:
                await server.remove(name)
            else:
                await server.put(name, spec={"holderIdentity": f"pod-{number}"})
        await followed.converges()
        assert len(server.requests) == 2
        assert followed.replica.batches < 2_000


async def test_an_object_that_does_not_decode_is_skipped() -> None:
    server = FaultyServer()
    await server.put("good")
    await server.put("bad", spec={"holderIdentity": 7})
    async with following(server) as followed:
        await followed.reflector.synced()
        assert set(followed.versions()) == {"good"}
        await server.put("bad", spec={"holderIdentity": [1]})
        await server.put("better")
        await wait_until(lambda: set(followed.versions()) == {"good", "better"})
        assert followed.reflector.state.resource_version == str(server.version)
        assert len(server.requests) == 2


async def test_an_object_that_no_longer_decodes_is_removed_when_it_is_deleted() -> None:
    server = FaultyServer()
    await server.put("once-good")
    async with following(server) as followed:
        await wait_until(lambda: followed.reflector.state.watching)
        await server.put("once-good", spec={"holderIdentity": 7})
        await server.remove("once-good")
        await server.put("later")
        await wait_until(lambda: "later" in followed.versions())
        await followed.converges()


async def test_a_listener_that_raises_does_not_affect_the_others() -> None:
    server = FaultyServer()
    async with following(server) as followed:

        def broken(changes: Sequence[CacheChange[Lease]]) -> None:
            raise RuntimeError("not my day")

        followed.reflector.subscribe(broken)
        later = Replica()
        await wait_until(lambda: followed.reflector.state.watching)
        await server.put("a")
        await followed.converges()
        end = followed.reflector.subscribe(later)
        assert later.versions() == server.truth(), "a late listener gets the existing objects"
        end()
        await server.put("b")
        await followed.converges()
        assert set(later.versions()) == {"a"}


async def test_a_lost_watch_shows_in_the_lag_and_the_error() -> None:
    server = FaultyServer()
    async with following(server) as followed:
        await wait_until(lambda: followed.reflector.state.watching)
        server.faults["WATCH"].extend([answer(503, "ServiceUnavailable")] * 10_000)
        await server.put("a")
        server.compact()
        await wait_until(lambda: "ServiceUnavailable on demand" in followed.reflector.state.error)
        await wait_until(lambda: followed.reflector.state.lag > 0.01)
        assert not followed.reflector.state.watching
        server.faults.clear()
        await followed.converges()
        await wait_until(lambda: followed.reflector.state.lag == 0.0)
        assert followed.reflector.state.error == "", "the watch stands, and may stand for minutes"


async def test_hundreds_of_broken_watches_leak_no_socket_and_no_task() -> None:
    server = FaultyServer()
    await server.put("a")
    async with following(server) as followed:
        await wait_until(lambda: followed.reflector.state.watching)
        process, tasks = psutil.Process(), len(asyncio.all_tasks())
        sockets = process.num_fds()
        for fault in list(WATCH_FAULTS.values()) * 20:
            server.faults["WATCH"].append(fault)
        await server.put("a")
        server.compact()
        await wait_until(lambda: not server.faults["WATCH"], seconds=30)
        await followed.converges()
        await wait_until(lambda: followed.reflector.state.watching)
        gc.collect()
        # Closed connections take a moment to disappear.
        await wait_until(lambda: len(asyncio.all_tasks()) <= tasks + 2)
        await wait_until(lambda: process.num_fds() <= sockets + 4)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef")),
        st.tuples(st.just("remove"), st.sampled_from("abcdef")),
        st.tuples(st.just("list fault"), st.sampled_from(sorted(LIST_FAULTS))),
        st.tuples(st.just("watch fault"), st.sampled_from(sorted(WATCH_FAULTS))),
        st.tuples(st.just("compact"), st.just("")),
        st.tuples(st.just("pause"), st.just("")),
    ),
    max_size=40,
)


@given(steps=steps, page_size=st.sampled_from([0, 2, 500]))
@settings(max_examples=60, deadline=None)
def test_the_cache_converges_after_any_series_of_changes_and_faults(
    steps: list[tuple[str, str]], page_size: int
) -> None:
    asyncio.run(_play(steps, page_size))


async def _play(steps: list[tuple[str, str]], page_size: int) -> None:
    server = FaultyServer()
    async with following(server, page_size=page_size) as followed:
        for what, which in steps:
            if what == "put":
                await server.put(which)
            elif what == "remove":
                await server.remove(which)
            elif what == "list fault":
                server.faults["GET"].append(LIST_FAULTS[which])
            elif what == "watch fault":
                server.faults["WATCH"].append(WATCH_FAULTS[which])
            elif what == "compact":
                server.compact()
            else:
                await asyncio.sleep(0.005)
        await followed.converges()
        injected = sum("fault" in what or what == "compact" for what, _ in steps)
        assert len(server.requests) <= 4 + 5 * injected + len(steps)
