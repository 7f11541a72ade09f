"""Serve watches over HTTP: one JSON line per event, until the client, a timeout or the server ends it."""

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
from kubelite.objects.versions import convert
from kubelite.printing.tables import partial_metadata, table
from kubelite.selectors import Predicate
from kubelite.storage.store import Store

_MIN_TIMEOUT_SECONDS = 1800.0


class WatchStreams:
    """The open watches."""

    def __init__(self, store: Store, clock: Clock, *, backlog: int, bookmark_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._backlog = backlog
        self._bookmark_seconds = bookmark_seconds
        self._open: set[Watch] = set()

    def __len__(self) -> int:
        return len(self._open)

    def close_all(self) -> None:
        """End every watch."""
        for watch in self._open:
            watch.end()

    async def serve(self, request: web.BaseRequest, kind: Kind, target: Target) -> web.StreamResponse:
        """Stream events to one client until the watch ends."""
        params = request.query
        predicate = _predicate(kind, target, query.selectors(kind, params))
        bookmarks, initial = query.boolean(params, "allowWatchBookmarks"), _wants_initial_events(params)
        version = query.resource_version(params)
        query.require_known_version(version, self._store.version)
        seconds = query.integer(params, "timeoutSeconds") or _MIN_TIMEOUT_SECONDS * (1 + random.random())  # noqa: S311  spreads reconnects
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        )
        collection = self._store.collection(kind.collection)
        render = self._render(
            kind, request.headers.get("Accept", ""), params.get("includeObject", "Metadata")
        )
        with Watch(
            collection, kind, target.namespace, predicate, backlog=self._backlog, render=render
        ) as watch:
            if initial or not version:
                watch.send_initial(collection.in_order())
            else:
                try:
                    watch.replay(collection.since(version))
                except ApiError as error:
                    watch.fail(error)
            if initial:
                watch.send("BOOKMARK", self._bookmark(kind, done=True))
            self._open.add(watch)
            try:
                # The client may disconnect at any moment.
                with contextlib.suppress(ConnectionResetError):
                    await response.prepare(request)
                    await self._write_events(response, watch, kind, seconds, bookmarks=bookmarks)
            finally:
                self._open.discard(watch)
        return response

    async def _write_events(
        self, response: web.StreamResponse, watch: Watch, kind: Kind, seconds: float, *, bookmarks: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        next_mark = loop.time() + self._bookmark_seconds
        while True:
            data = await watch.pending(max(0.0, min(end, next_mark) - loop.time()))
            if data:
                await response.write(data)
            if watch.ended or loop.time() >= end:
                await response.write_eof()
                return
            if loop.time() >= next_mark:
                next_mark = loop.time() + self._bookmark_seconds
                if bookmarks:
                    watch.send("BOOKMARK", self._bookmark(kind))

    def _bookmark(self, kind: Kind, *, done: bool = False) -> Json:
        metadata: Json = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        if done:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}

    def _render(self, kind: Kind, accept: str, include: str) -> Render | None:
        """Return the encoder for clients that want tables or metadata, None for plain objects."""
        if "as=" not in accept:
            return None
        with_header = True

        def as_table(event: str, item: Json) -> bytes:
            nonlocal with_header
            shown = convert(kind, item)
            metadata = {"resourceVersion": item["metadata"].get("resourceVersion", "")}
            result = (
                table(kind, [shown], metadata, include, self._clock(), with_header=with_header)
                if event != "BOOKMARK"
                else {
                    **table(kind, [], metadata, include, self._clock(), with_header=with_header),
                    "rows": [{"cells": [], "object": partial_metadata(item)}],
                }
            )
            with_header = False
            return encode({"type": event, "object": result}) + b"\n"

        if query.accepts(accept, "Table"):
            return as_table
        if query.accepts(accept, "PartialObjectMetadata"):
            return lambda event, item: encode({"type": event, "object": partial_metadata(item)}) + b"\n"
        return None


def _predicate(kind: Kind, target: Target, predicate: Predicate | None) -> Predicate | None:
    """Combine the selectors with the name in the path."""
    if kind.collection == "events" and predicate is not None:
        inner = predicate
        predicate = lambda item: inner(convert(kind, dict(item)))  # noqa: E731  two pending of def would send no more
    if not target.name:
        return predicate
    name, also = target.name, predicate
    return lambda item: item["metadata"]["name"] == name and (also is None or also(item))


def _wants_initial_events(params: Mapping[str, str]) -> bool:
    """Return whether the watch starts with the existing objects and a bookmark."""
    if not query.boolean(params, "sendInitialEvents"):
        return False
    if params.get("resourceVersionMatch") != "NotOlderThan":
        raise ApiError(
            422,
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan',
        )
    return True
