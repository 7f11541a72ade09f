"""There is one leader at a time, and a new one soon after it ends."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from tests.kubernetes.faulty_server import FaultyServer, hang, status
from tests.waiting import wait_until

from gpufleet.kubernetes import (
    LEASES,
    Connection,
    ElectionTimings,
    KubeClient,
    LeaderElection,
    Retries,
    Timing,
)
from gpufleet.kubernetes.client.errors import ObjectNotFound

# A lease's duration is in whole seconds, so one second is the shortest.
TERMS = ElectionTimings(lease_duration=1.0, renew_deadline=0.6, retry_period=0.05)


class Reign:
    """Records who leads and when; fails if two lead at the same time."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.history: list[str] = []

    def lead(self, name: str) -> Callable[[], asyncio.Future[None]]:
        async def lead() -> None:
            assert not self.now, f"{name} starts while {self.now} leads"
            self.now.add(name)
            self.history.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.now.discard(name)

        return lambda: asyncio.ensure_future(lead())


def candidate(server: FaultyServer, name: str, *, ahead: float = 0.0) -> tuple[KubeClient, LeaderElection]:
    timing = Timing(now=lambda: datetime.now(UTC) + timedelta(seconds=ahead))
    client = KubeClient(
        Connection(server.url, token=name), timeout=0.3, retries=Retries(attempts=1), timing=timing
    )
    return client, LeaderElection(client, "default", "one-lease", name, TERMS)


def renewed_for(server: FaultyServer) -> float:
    """Return the seconds between the acquisition of the lease and its last renewal."""
    spec = server.objects["one-lease"]["spec"]
    acquired, renewed = (datetime.fromisoformat(spec[key]) for key in ("acquireTime", "renewTime"))
    return (renewed - acquired).total_seconds()


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def test_a_second_candidate_takes_over_immediately_when_the_leader_ends() -> None:
    server, reign = FaultyServer(), Reign()
    async with server.serving():
        (client_a, a), (client_b, b) = candidate(server, "a"), candidate(server, "b", ahead=3600.0)
        async with client_a, client_b:
            first = asyncio.create_task(a.run(reign.lead("a")))
            await wait_until(lambda: a.leading)
            second = asyncio.create_task(b.run(reign.lead("b")))
            # Real time: a lease is shorter than this only if it is never renewed.
            await wait_until(lambda: renewed_for(server) > TERMS.lease_duration)
            assert (reign.history, b.leading, b.leader) == (["a"], False, "a")
            await stop(first)
            assert server.objects["one-lease"]["spec"]["holderIdentity"] in ("", "b"), "it was given back"
            await wait_until(lambda: b.leading)
            lease = await client_b.get(LEASES, "one-lease", "default")
            assert lease.spec.holder_identity == "b"
            assert lease.spec.lease_transitions == 1
            await stop(second)
    assert reign.history == ["a", "b"]


async def test_renewals_do_not_queue_behind_other_requests() -> None:
    server, reign = FaultyServer(), Reign()
    async with (
        server.serving(),
        KubeClient(Connection(server.url), requests_per_second=0.1, burst=1) as client,
    ):
        waiting = [asyncio.create_task(client.read_json("/version")) for _ in range(20)]
        election = LeaderElection(client, "default", "one-lease", "a", TERMS)
        leader = asyncio.create_task(election.run(reign.lead("a")))
        await wait_until(lambda: election.leading)
        renewed = server.version
        await wait_until(lambda: server.version > renewed)
        assert not all(task.done() for task in waiting), "they have their turns in minutes"
        await stop(leader)
        for task in waiting:
            await stop(task)


async def test_a_leader_that_ends_during_a_renewal_releases_the_lease() -> None:
    server, reign, done = FaultyServer(), Reign(), asyncio.Event()

    async def renew_without_a_word(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        await server._replace("one-lease", await request.json())
        done.set()
        return await hang(server, request)

    async with server.serving():
        client, election = candidate(server, "a")
        async with client:
            leader = asyncio.create_task(election.run(reign.lead("a")))
            await wait_until(lambda: election.leading)
            server.faults["PUT"].append(renew_without_a_word)
            await asyncio.wait_for(done.wait(), 10)
            await stop(leader)
            assert server.objects["one-lease"]["spec"]["holderIdentity"] == ""


async def test_an_isolated_leader_stops_before_another_starts_and_becomes_a_candidate_again() -> None:
    server, reign = FaultyServer(), Reign()
    async with server.serving():
        (client_a, a), (client_b, b) = candidate(server, "a"), candidate(server, "b")
        async with client_a, client_b:
            first = asyncio.create_task(a.run(reign.lead("a")))
            await wait_until(lambda: reign.now == {"a"})
            second = asyncio.create_task(b.run(reign.lead("b")))

            def cut_off_a(request: web.Request) -> web.Response | None:
                return status(503, "Unavailable") if request.headers["Authorization"] == "Bearer a" else None

            server.refuse = cut_off_a
            await wait_until(lambda: not a.leading)
            assert "b" not in reign.now
            await wait_until(lambda: reign.now == {"b"})
            server.refuse = lambda request: None
            await wait_until(lambda: a.leader == "b")
            await stop(second)
            await wait_until(lambda: reign.now == {"a"})
            await stop(first)
    assert reign.history == ["a", "b", "a"]


async def test_a_hanging_server_ends_leadership_in_time() -> None:
    server, reign = FaultyServer(), Reign()
    async with server.serving():
        client, election = candidate(server, "a")
        async with client:
            task = asyncio.create_task(election.run(reign.lead("a")))
            await wait_until(lambda: reign.now == {"a"})
            server.faults["GET"].extend([hang] * 50)
            await wait_until(lambda: not reign.now)
            assert not election.leading
            await stop(task)


async def test_the_lease_is_released_when_the_work_ends_or_fails() -> None:
    server = FaultyServer()
    async with server.serving():
        client, election = candidate(server, "a")
        async with client:
            with pytest.raises(ObjectNotFound):
                await client.get(LEASES, "one-lease", "default")

            async def fail() -> None:
                assert election.leading
                raise ValueError("the work failed")

            with pytest.raises(ValueError, match="the work failed"):
                await election.run(fail)
            assert not election.leading
            assert (await client.get(LEASES, "one-lease", "default")).spec.holder_identity == ""

            async def succeed() -> None:
                pass

            await election.run(succeed)
            assert (await client.get(LEASES, "one-lease", "default")).spec.holder_identity == ""


async def test_one_of_many_candidates_leads() -> None:
    server, reign = FaultyServer(), Reign()
    async with server.serving():
        pairs = [candidate(server, f"c{number}") for number in range(8)]
        tasks = [asyncio.create_task(e.run(reign.lead(e.identity))) for _, e in pairs]
        await wait_until(lambda: all(e.leader for _, e in pairs))
        renewed = server.version
        await wait_until(lambda: server.version >= renewed + 5)
        assert sum(e.leading for _, e in pairs) == len(reign.now) == 1
        for task in tasks:
            await stop(task)
        for client, _ in pairs:
            await client.close()
