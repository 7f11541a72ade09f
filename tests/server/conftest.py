"""A small application with a route in each envelope, to test the HTTP layer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
from msgspec import Meta

from gpufleet.errors import NotFound, StoreUnavailable
from gpufleet.server.app import Api, create_app
from gpufleet.server.http.answers import Answer, Prepared
from gpufleet.server.http.routing import Route, get, post


class Paged(msgspec.Struct, rename="camel"):
    page_num: Annotated[int, Meta(ge=1, le=1000, description="Page number.")] = 1
    order_by: Annotated[Literal["start_at", "end_at"] | None, Meta(description="Sort field.")] = None
    kind: list[str] = []


class Hours(msgspec.Struct):
    start_time: Annotated[datetime, Meta(tz=True, description="First hour.")]
    end_time: Annotated[datetime, Meta(tz=True, description="Last hour.")]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.start_time > self.end_time:
            raise ValueError("start_time must not be after end_time")


class Row(msgspec.Struct):
    name: str
    value: int


class Seen(msgspec.Struct, rename="camel"):
    page_num: int
    order_by: str | None
    kind: list[str]


def sample_routes() -> list[Route]:
    prepared: Prepared[list[Row]] = Prepared.of([Row(f"gpu-{n}", n) for n in range(500)], "500 GPUs")

    @get("/api/clusters/rows", scope="public", example=Seen(1, None, []))
    async def rows(query: Paged) -> Seen:
        """Return the parameters."""
        return Seen(query.page_num, query.order_by, query.kind)

    @get("/api/workloads/{uid:str}", example=Row("a", 1))
    async def workload(uid: str) -> Row:
        """One workload."""
        if uid == "missing":
            raise NotFound(f"no workload with uid {uid}")
        if uid == "broken":
            raise ZeroDivisionError("secret detail")
        if uid == "slow":
            await asyncio.sleep(30)
        return Row(uid, len(uid))

    @get("/api/v1/gpu-aggregation/hours", example=[Row("h", 1)])
    async def hours(query: Hours) -> list[Row]:
        """Hours between two times."""
        return [Row(query.start_time.isoformat(), 1), Row(query.end_time.isoformat(), 2)]

    @get("/api/v1/gpu-aggregation/down")
    async def down() -> list[Row]:
        """Fail without a database."""
        raise StoreUnavailable("the database does not answer")

    @get("/api/v1/gpu/metrics", example=[Row("g", 1)])
    async def metrics() -> Prepared[list[Row]]:
        """Rows encoded once."""
        return prepared

    @post("/api/workloads/{uid:str}/reports", example=Row("a", 2), body_example=[Row("loss", 1)])
    async def report(uid: str, body: list[Row]) -> Answer[Row]:
        """Count rows."""
        return Answer(Row(uid, len(body)))

    return [rows, workload, hours, down, metrics, report]


def slow_route(began: asyncio.Event, end: asyncio.Event) -> Route:
    """Return a route that sets `began` and answers when `end` is set."""

    @get("/api/clusters/slow")
    async def slow() -> str:
        """Answer when the test allows it."""
        began.set()
        await end.wait()
        return "finished"

    return slow


Client = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def client() -> Client:
    @asynccontextmanager
    async def open_client(**parts: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Api(**{"routes": sample_routes(), **parts}))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as opened:
            yield opened

    return open_client
