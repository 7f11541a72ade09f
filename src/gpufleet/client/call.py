"""What to request and how to read the answer, independent of how it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

T = TypeVar("T")
PAGE_SIZE = 500


class Page(Protocol[T]):
    """One page of rows, and how many rows there are in all."""

    @property
    def data(self) -> list[T]:
        """The rows."""

    @property
    def total(self) -> int:
        """How many rows there are on all pages."""


class Envelope(msgspec.Struct, Generic[T]):
    """What all envelopes of the API have."""

    data: T


@dataclass(frozen=True)
class Call(Generic[T]):
    """A GET request whose answer has `data` of type `T`."""

    path: str
    path_values: Mapping[str, str]
    query: Mapping[str, Any]
    type: type[T]

    @property
    def url(self) -> str:
        """The path with its values, relative to the server's address."""
        return self.path.format(**{name: quote(value, safe=":") for name, value in self.path_values.items()})

    @property
    def parameters(self) -> dict[str, str]:
        """The query parameters that have a value, as text."""
        return {name: _text(value) for name, value in self.query.items() if value is not None}

    def decode(self, body: bytes) -> T:
        """Return the data of a response."""
        kind: Any = self.type
        found: Envelope[T] = msgspec.json.decode(body, type=Envelope[kind])
        return found.data


@dataclass(frozen=True)
class Paged(Generic[T]):
    """A GET request for a list that the server returns in pages."""

    path: str
    path_values: Mapping[str, str]
    query: Mapping[str, Any]
    page_type: type[Page[T]]
    number: str
    """The parameter with the number of the page: pageNum or page."""

    def page(self, number: int, size: int = PAGE_SIZE) -> Call[Page[T]]:
        """Return the request for one page, counted from 1."""
        size_name = "pageSize" if self.number == "pageNum" else "page_size"
        query = {**self.query, self.number: number, size_name: size}
        return Call(self.path, self.path_values, query, self.page_type)


def with_cluster(call: Call[T], cluster: str) -> Call[T]:
    """Return the call for `cluster`, unless it names one or its route takes none."""
    if not cluster or "cluster" not in call.query or call.query["cluster"] is not None:
        return call
    return replace(call, query={**call.query, "cluster": cluster})


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        # A time without an offset is local, as everywhere in Python.
        return value.astimezone(UTC).isoformat()
    return str(value)
