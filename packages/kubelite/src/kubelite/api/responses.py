"""Bodies of get and list responses: stored bytes joined together, and tables for kubectl."""

from collections.abc import Mapping

from kubelite.api.query import (
    accepts,
    decode_continue,
    encode_continue,
    integer,
    require_known_version,
    resource_version,
    selectors,
)
from kubelite.clock import Clock
from kubelite.errors import bad_request, expired
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.versions import convert, encode_object
from kubelite.printing.tables import partial_metadata, table
from kubelite.storage.store import Entry, Store


def render(kind: Kind, entry: Entry, accept: str, query: Mapping[str, str], clock: Clock) -> bytes:
    """Return one object in the form that the Accept header asks for."""
    if "as=" in accept:
        item = convert(kind, entry.object)
        if accepts(accept, "Table"):
            metadata = {"resourceVersion": item["metadata"].get("resourceVersion", "")}
            return encode(table(kind, [item], metadata, query.get("includeObject", "Metadata"), clock()))
        if accepts(accept, "PartialObjectMetadata"):
            return encode(partial_metadata(item))
    return encode_object(kind, entry)


def render_list(
    store: Store, kind: Kind, namespace: str, query: Mapping[str, str], accept: str, clock: Clock
) -> bytes:
    """Return a list, or one page of it, in the form that the Accept header asks for."""
    entries, metadata = select(store, kind, namespace, query)
    if "as=" in accept:
        if accepts(accept, "Table"):
            items = [convert(kind, entry.object) for entry in entries]
            return encode(table(kind, items, metadata, query.get("includeObject", "Metadata"), clock()))
        if accepts(accept, "PartialObjectMetadataList"):
            rows = [partial_metadata(entry.object) for entry in entries]
            head: Json = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return encode({**head, "metadata": metadata, "items": rows})
    items_json = b",".join([encode_object(kind, entry) for entry in entries])
    return encode(list_head(kind, metadata))[:-1] + b',"items":[' + items_json + b"]}"


def list_head(kind: Kind, metadata: Json) -> Json:
    """Return a list object without its items."""
    name = kind.list_kind or f"{kind.kind}List"
    return {"kind": name, "apiVersion": kind.api_version, "metadata": metadata}


def select(store: Store, kind: Kind, namespace: str, query: Mapping[str, str]) -> tuple[list[Entry], Json]:
    """Return the entries of a list or page, and the metadata of the list."""
    limit, token = integer(query, "limit"), query.get("continue", "")
    version = resource_version(query)
    require_known_version(version, store.version)
    predicate = selectors(kind, query)
    if token:
        if version:
            raise bad_request("specifying resource version is not allowed when using continue")
        name, start = decode_continue(token)
        entries, at = store.kept_listing(name)
    else:
        if query.get("resourceVersionMatch") == "Exact" and version and version != store.version:
            raise expired(f"The provided resource version {version} is no longer kept")
        entries, at, start, name = store.collection(kind.collection).in_order(), store.version, 0, ""
        if namespace:
            entries = [entry for entry in entries if entry.key[0] == namespace]
        if predicate is not None:
            entries = [entry for entry in entries if predicate(convert(kind, entry.object))]
    metadata: Json = {"resourceVersion": str(at)}
    if limit <= 0 or start + limit >= len(entries):
        return entries[start:] if start else entries, metadata
    name = name or store.keep_listing(entries, at)
    metadata["continue"] = encode_continue(name, start + limit)
    if predicate is None:
        metadata["remainingItemCount"] = len(entries) - start - limit
    return entries[start : start + limit], metadata
