"""What health shows to whom, and a database that answers but refuses writes."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.server.auth.test_gate import VIEWER, Clock, Kubernetes, Permissions, bearer, tokens
from tests.server.conftest import Client

from gpufleet.errors import MetricsUnavailable, StoreUnavailable
from gpufleet.runtime.settings import Settings, StoreSettings
from gpufleet.runtime.settings.load import load_settings
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.wiring.assemble import open_database
from gpufleet.server.wiring.components import Components
from gpufleet.store import Store
from gpufleet.store.postgres.data_directory import DataDirectory

SECRET = "http://user:password@10.1.2.3:9090 answered 500: internal stack trace"


async def lost() -> str:
    raise MetricsUnavailable(SECRET)


def started(http: httpx.AsyncClient) -> AbstractAsyncContextManager[None]:
    """Start the application of a client, which probes its dependencies."""
    app = http._transport.app  # type: ignore[attr-defined]
    context: AbstractAsyncContextManager[None] = app.router.lifespan_context(app)
    return context


async def test_messages_of_dependencies_need_a_login(client: Client, tmp_path: Path) -> None:
    gate = BearerGate(tokens(tmp_path))
    async with client(gate=gate, probes={"metrics": lost}) as http, started(http):
        public = await http.get("/api/healthz")
        wrong = await http.get("/api/healthz", headers=bearer("wrong"))
        own = await http.get("/api/healthz", headers=bearer(VIEWER))
    for answer in (public, wrong):
        data = answer.json()["data"]
        assert (answer.status_code, data["status"]) == (200, "degraded")
        assert data["dependencies"]["metrics"]["state"] == "down"
        assert "password" not in answer.text
        assert "10.1.2.3" not in answer.text
    assert own.json()["data"]["dependencies"]["metrics"]["message"] == SECRET


async def test_without_login_only_loopback_shows_messages(client: Client) -> None:
    async with client(probes={"metrics": lost}, hosts=()) as http, started(http):
        assert SECRET in (await http.get("/api/healthz")).text
    async with client(probes={"metrics": lost}) as http, started(http):
        assert "password" not in (await http.get("/api/healthz")).text


async def test_health_is_no_way_to_guess_tokens(client: Client) -> None:
    clock, kubernetes = Clock(), Kubernetes()
    gate = BearerGate(reviews=ReviewedTokens(kubernetes, Permissions(), 60, clock), clock=clock)
    async with client(gate=gate) as http:
        answers = [await http.get("/api/healthz", headers=bearer(f"guess-{n}")) for n in range(25)]
    assert {answer.status_code for answer in answers} == {200}
    assert kubernetes.requests == 20


def settings(store: StoreSettings) -> Settings:
    return load_settings({}, {}, None).replace(store)


async def test_a_read_only_database_is_down_in_health_and_on_metrics(
    store_settings: StoreSettings, client: Client
) -> None:
    async with AsyncExitStack() as stack:
        components = Components(settings(store_settings), stack)
        await open_database(components)
        async with client(probes=components.probes, metrics=components.metrics, hosts=()) as http:
            async with started(http):
                ok = (await http.get("/api/healthz")).json()["data"]
            await _execute(store_settings.url, "ALTER DATABASE {} SET default_transaction_read_only = on")
            await components.store.database._pool.expire_connections()
            async with started(http):
                down = (await http.get("/api/healthz")).json()["data"]
                metrics = (await http.get("/metrics")).text
    assert ok["dependencies"]["store"]["state"] == "ok"
    assert (down["status"], down["dependencies"]["store"]["state"]) == ("degraded", "down")
    assert "read-only" in down["dependencies"]["store"]["message"]
    assert 'gpufleet_dependency_up{dependency="store"} 0.0' in metrics


@pytest.fixture
def tiny_disk(postgres: DataDirectory) -> Iterator[Path]:
    """A file system of 4 MB that belongs to PostgreSQL's user."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-tiny-"))
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    ).returncode:
        folder.rmdir()
        pytest.skip("this user may not mount a file system")
    if postgres.account.uid is not None:
        shutil.chown(folder, postgres.account.uid, postgres.account.gid)
        folder.parent.chmod(folder.parent.stat().st_mode | 0o1)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


async def test_a_full_disk_is_down_until_writes_succeed(store: Store, tiny_disk: Path) -> None:
    url = store._dsn
    await _execute(url, f"CREATE TABLESPACE tiny LOCATION '{tiny_disk}'")
    try:
        await store.database.execute("CREATE TABLE fill (data bytea) TABLESPACE tiny")
        await _execute(url, "ALTER DATABASE {} SET default_tablespace = tiny")
        await store.database._pool.expire_connections()
        await store.database.check_writes()
        with pytest.raises(StoreUnavailable, match="disk is full"):  # noqa: PT012  (one of them fills it)
            for _ in range(10):
                await store.database.execute(
                    "INSERT INTO fill SELECT sha512(n::text::bytea) FROM generate_series(1, 20000) n"
                )
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await store.database.check_writes()
        enlarge = ["mount", "-o", "remount,size=64m", str(tiny_disk)]
        await asyncio.to_thread(subprocess.run, enlarge, check=True)
        await store.database.check_writes()
        assert not store.database.writes_refused
    finally:
        await store.database.execute("DROP TABLE fill")
        await _execute(url, "ALTER DATABASE {} RESET default_tablespace")
        await _execute(url, "CHECKPOINT")
        await _execute(url, "DROP TABLESPACE tiny")


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        name = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(statement.replace("{}", name))
    finally:
        await connection.close()
