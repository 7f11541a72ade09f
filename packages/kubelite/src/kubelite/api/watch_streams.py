"""Watches over HTTP: one JSON line for each event, until the client, the time or the server ends it."""

import asyncio
import contextlib
import random
from collections.abc import Mapping

from aiohttp import web

from kubelite.api import query
from kubelite.api.paths import Target
from kubelite.api.watch import Render, Watch
from kubelite.clock import Clock
from kubelite.errors import ApiError
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.versions import in_version
from kubelite.printing.tables import partial, table
from kubelite.selectors import Predicate
from kubelite.storage.store import Store

_SHORTEST = 1800.0


class Streams:
    """The watches in progress."""

    def __init__(self, store: Store, clock: Clock, *, backlog: int, bookmark_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._backlog = backlog
        self._bookmark_seconds = bookmark_seconds
        self._open: set[Watch] = set()

    def __len__(self) -> int:
        return len(self._open)

    def end_all(self) -> None:
        """End every watch, for a server that stops."""
        for watch in self._open:
            watch.end()

    async def serve(self, request: web.BaseRequest, kind: Kind, target: Target) -> web.StreamResponse:
        """Stream events to one client."""
        asked = request.query
        wanted = _wanted(kind, target, query.selection(kind, asked).wanted)
        bookmarks, initial = query.flag(asked, "allowWatchBookmarks"), _initial(asked)
        version = query.version_of(asked)
        query.require_reached(version, self._store.version)
        seconds = query.number(asked, "timeoutSeconds") or _SHORTEST * (1 + random.random())  # noqa: S311  spreads reconnects
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        )
        shelf = self._store.shelf(kind.shelf)
        render = self._render(kind, request.headers.get("Accept", ""), asked.get("includeObject", "Metadata"))
        with Watch(shelf, kind, target.namespace, wanted, backlog=self._backlog, render=render) as watch:
            if initial or not version:
                watch.show(shelf.in_order())
            else:
                try:
                    watch.replay(shelf.since(version))
                except ApiError as error:
                    watch.fail(error)
            if initial:
                watch.say("BOOKMARK", self._bookmark(kind, done=True))
            self._open.add(watch)
            try:
                # The client may leave at any moment; there is nobody to tell then.
                with contextlib.suppress(ConnectionResetError):
                    await response.prepare(request)
                    await self._pump(response, watch, kind, seconds, bookmarks=bookmarks)
            finally:
                self._open.discard(watch)
        return response

    async def _pump(
        self, response: web.StreamResponse, watch: Watch, kind: Kind, seconds: float, *, bookmarks: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        next_mark = loop.time() + self._bookmark_seconds
        while True:
            data = await watch.lines(max(0.0, min(end, next_mark) - loop.time()))
            if data:
                await response.write(data)
            if watch.ended or loop.time() >= end:
                await response.write_eof()
                return
            if loop.time() >= next_mark:
                next_mark = loop.time() + self._bookmark_seconds
                if bookmarks:
                    watch.say("BOOKMARK", self._bookmark(kind))

    def _bookmark(self, kind: Kind, *, done: bool = False) -> Json:
        metadata: Json = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if done:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}

    def _render(self, kind: Kind, accept: str, include: str) -> Render | None:
        """How events are written for a client that wants tables or metadata only."""
        if "as=" not in accept:
            return None
        headed = True

        def as_table(event: str, item: Json) -> bytes:
            nonlocal headed
            shown = in_version(kind, item)
            metadata = {"resourceVersion": item["metadata"].get("resourceVersion", "")}
            made = (
                table(kind, [shown], metadata, include, self._clock(), headed=headed)
                if event != "BOOKMARK"
                else {
                    **table(kind, [], metadata, include, self._clock(), headed=headed),
                    "rows": [{"cells": [], "object": partial(item)}],
                }
            )
            headed = False
            return encode({"type": event, "object": made}) + b"\n"

        if query.wants(accept, "Table"):
            return as_table
        if query.wants(accept, "PartialObjectMetadata"):
            return lambda event, item: encode({"type": event, "object": partial(item)}) + b"\n"
        return None


def _wanted(kind: Kind, target: Target, wanted: Predicate | None) -> Predicate | None:
    """The selectors, the single name that a path may carry, and the version that they speak of."""
    if kind.shelf == "events" and wanted is not None:
        inner = wanted
        wanted = lambda item: inner(in_version(kind, dict(item)))  # noqa: E731  two lines of def would say no more
    if not target.name:
        return wanted
    name, also = target.name, wanted
    return lambda item: item["metadata"]["name"] == name and (also is None or also(item))


def _initial(asked: Mapping[str, str]) -> bool:
    """Whether the client wants the present state first, then a bookmark that says so."""
    if not query.flag(asked, "sendInitialEvents"):
        return False
    if asked.get("resourceVersionMatch") != "NotOlderThan":
        raise ApiError(
            422,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan',
        )
    return True
