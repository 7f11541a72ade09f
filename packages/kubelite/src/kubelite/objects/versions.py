"""One stored object, read in the version that was asked for.

Versions of a custom resource differ in name only (the conversion strategy `None`). Events are
stored once and served by two groups that call some fields differently.
"""

import msgspec

from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.storage.store import Change, Entry

_encode = msgspec.json.Encoder().encode

# core name, events.k8s.io name
_EVENT_NAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
)
_TO_V1 = dict(_EVENT_NAMES)
_TO_CORE = {new: old for old, new in _EVENT_NAMES}


def in_version(kind: Kind, item: Json) -> Json:
    """The object as a kind shows it."""
    if item.get("apiVersion") == kind.api_version:
        return item
    if kind.shelf == "events":
        names = _TO_V1 if kind.group else _TO_CORE
        item = {names.get(name, name): value for name, value in item.items()}
    return {**item, "apiVersion": kind.api_version, "kind": kind.kind}


def encoded(kind: Kind, entry: Entry) -> bytes:
    """The entry's JSON as a kind shows it; the stored bytes where the versions agree."""
    if entry.object.get("apiVersion") == kind.api_version:
        return entry.encoded
    return _encode(in_version(kind, entry.object))


def event_line(kind: Kind, event: str, change: Change, entry: Entry) -> bytes:
    """A watch line, encoded once for all watchers that want it so."""
    place = (kind.api_version, event)
    line = change.lines.get(place)
    if line is None:
        line = change.lines[place] = b'{"type":"%b","object":%b}\n' % (event.encode(), encoded(kind, entry))
    return line
