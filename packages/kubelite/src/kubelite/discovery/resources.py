"""Discovery documents, in the legacy and the aggregated form."""

from kubelite.json import Json
from kubelite.kinds import Kind, Registry

_SCALE = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
_STATUS_VERBS = ["get", "patch", "update"]
_SPECIAL: dict[str, tuple[Json, list[str]]] = {
    "binding": ({"group": "", "version": "v1", "kind": "Binding"}, ["create"]),
    "eviction": ({"group": "policy", "version": "v1", "kind": "Eviction"}, ["create"]),
    "token": ({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}, ["create"]),
    "finalize": ({"group": "", "version": "v1", "kind": "Namespace"}, ["update"]),
    "ephemeralcontainers": ({"group": "", "version": "v1", "kind": "Pod"}, _STATUS_VERBS),
}


def core_versions(address: str) -> Json:
    """Return the document at `/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(registry: Registry) -> Json:
    """Return the document at `/apis`."""
    groups = [_group(name, versions) for name, versions in registry.group_versions().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Json | None:
    """Return the document at `/apis/<group>`."""
    versions = registry.group_versions().get(name)
    return None if not versions else {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> Json:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def resource_list(registry: Registry, group_name: str, version: str) -> Json | None:
    """Return the document at `/api/v1` or `/apis/<group>/<version>`."""
    kinds = registry.of(group_name, version)
    if not kinds:
        return None
    resources: list[Json] = []
    for kind in kinds:
        resource: Json = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            resource["shortNames"] = list(kind.short_names)
        if kind.categories:
            resource["categories"] = list(kind.categories)
        resources.append(resource)
        for name, (of, verbs) in _subresources(kind).items():
            below: Json = {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": of["kind"],
                "verbs": verbs,
            }
            if of["group"] != kind.group:
                below |= {"group": of["group"], "version": of["version"]}
            resources.append(below)
    name = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}


def _subresources(kind: Kind) -> dict[str, tuple[Json, list[str]]]:
    found: dict[str, tuple[Json, list[str]]] = {name: _SPECIAL[name] for name in kind.extra_subresources}
    own = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    if kind.scale is not None:
        found["scale"] = (_SCALE, _STATUS_VERBS)
    if kind.status:
        found["status"] = (own, _STATUS_VERBS)
    return found


def aggregated(registry: Registry, *, core: bool) -> Json:
    """Return aggregated discovery (apidiscovery.k8s.io/v2), which kubectl requests first."""
    items = []
    for name, versions in registry.group_versions().items():
        if bool(name) is core:
            continue
        described = [
            {
                "version": version,
                "resources": [_described(kind) for kind in registry.of(name, version)],
                "freshness": "Current",
            }
            for version in versions
        ]
        items.append({"metadata": {"name": name} if name else {}, "versions": described})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _described(kind: Kind) -> Json:
    described: Json = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        described["shortNames"] = list(kind.short_names)
    if kind.categories:
        described["categories"] = list(kind.categories)
    below = [
        {"subresource": name, "responseKind": of, "verbs": verbs}
        for name, (of, verbs) in _subresources(kind).items()
    ]
    if below:
        described["subresources"] = below
    return described
