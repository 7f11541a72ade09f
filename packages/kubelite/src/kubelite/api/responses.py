"""Get and list: stored bytes put together, and tables for kubectl."""

from collections.abc import Mapping

from kubelite.api.query import number, page_token, read_token, require_reached, selection, version_of, wants
from kubelite.clock import Clock
from kubelite.errors import bad_request, expired
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.versions import encoded, in_version
from kubelite.printing.tables import partial, table
from kubelite.storage.store import Entry, Store


def shown(kind: Kind, entry: Entry, accept: str, query: Mapping[str, str], clock: Clock) -> bytes:
    """One object in the form that was asked for."""
    if "as=" in accept:
        item = in_version(kind, entry.object)
        if wants(accept, "Table"):
            metadata = {"resourceVersion": item["metadata"].get("resourceVersion", "")}
            return encode(table(kind, [item], metadata, query.get("includeObject", "Metadata"), clock()))
        if wants(accept, "PartialObjectMetadata"):
            return encode(partial(item))
    return encoded(kind, entry)


def listing(
    store: Store, kind: Kind, namespace: str, query: Mapping[str, str], accept: str, clock: Clock
) -> bytes:
    """A list, or a page of one."""
    entries, metadata = select(store, kind, namespace, query)
    if "as=" in accept:
        if wants(accept, "Table"):
            items = [in_version(kind, entry.object) for entry in entries]
            return encode(table(kind, items, metadata, query.get("includeObject", "Metadata"), clock()))
        if wants(accept, "PartialObjectMetadataList"):
            rows = [partial(entry.object) for entry in entries]
            head: Json = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return encode({**head, "metadata": metadata, "items": rows})
    head = {
        "kind": kind.list_kind or f"{kind.kind}List",
        "apiVersion": kind.api_version,
        "metadata": metadata,
    }
    return encode(head)[:-1] + b',"items":[' + b",".join([encoded(kind, entry) for entry in entries]) + b"]}"


def select(store: Store, kind: Kind, namespace: str, query: Mapping[str, str]) -> tuple[list[Entry], Json]:
    """The entries of a list (or page), and the list's metadata."""
    limit, token = number(query, "limit"), query.get("continue", "")
    version = version_of(query)
    require_reached(version, store.version)
    chosen = selection(kind, query)
    if token:
        if version:
            raise bad_request("specifying resource version is not allowed when using continue")
        name, start = read_token(token)
        entries, at = store.kept_listing(name)
    else:
        if query.get("resourceVersionMatch") == "Exact" and version and version != store.version:
            raise expired(f"The provided resource version {version} is no longer kept")
        entries, at, start, name = store.shelf(kind.shelf).in_order(), store.version, 0, ""
        if namespace:
            entries = [entry for entry in entries if entry.key[0] == namespace]
        if chosen.wanted is not None:
            wanted = chosen.wanted
            entries = [entry for entry in entries if wanted(in_version(kind, entry.object))]
    metadata: Json = {"resourceVersion": str(at)}
    if limit <= 0 or start + limit >= len(entries):
        return entries[start:] if start else entries, metadata
    name = name or store.keep_listing(entries, at)
    metadata["continue"] = page_token(name, start + limit)
    if not chosen.selective:
        metadata["remainingItemCount"] = len(entries) - start - limit
    return entries[start : start + limit], metadata
