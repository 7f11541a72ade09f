"""Convert stored objects to the requested API version.

Versions of a custom resource differ only in `apiVersion` (conversion strategy `None`). Events are
stored once and served by two groups that name some fields differently.
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


def convert(kind: Kind, item: Json) -> Json:
    """Return an object in the version of a kind."""
    if item.get("apiVersion") == kind.api_version:
        return item
    if kind.collection == "events":
        names = _TO_V1 if kind.group else _TO_CORE
        item = {names.get(name, name): value for name, value in item.items()}
    return {**item, "apiVersion": kind.api_version, "kind": kind.kind}


def encode_object(kind: Kind, entry: Entry) -> bytes:
    """Return the JSON of an entry in the version of a kind, without encoding again if they agree."""
    if entry.object.get("apiVersion") == kind.api_version:
        return entry.encoded
    return _encode(convert(kind, entry.object))


def encode_event(kind: Kind, event: str, change: Change, entry: Entry) -> bytes:
    """Return the line of a watch event, encoded once for all watchers."""
    place = (kind.api_version, event)
    line = change.lines.get(place)
    if line is None:
        line = change.lines[place] = b'{"type":"%b","object":%b}\n' % (
            event.encode(),
            encode_object(kind, entry),
        )
    return line
