"""Builders for the objects that the suite creates."""

from typing import Any

Json = dict[str, Any]
GROUP = "contract.example.com"


def config_map(name: str, data: Json | None = None, **metadata: Any) -> Json:
    """Return a ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": data or {},
    }


def pod(name: str, **spec: Any) -> Json:
    """Return a pod that no scheduler takes."""
    container = {"name": "main", "image": "busybox:1", "env": [{"name": "A", "value": "1"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "none", "containers": [container], **spec},
    }


def owner(item: Json, *, block: bool = False) -> Json:
    """Return an owner reference to an object."""
    reference = {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "uid": item["metadata"]["uid"],
    }
    return {**reference, "blockOwnerDeletion": True} if block else reference


def definition(plural: str, kind: str, *, scope: str = "Namespaced") -> Json:
    """Return a definition with a default, limits, CEL rules, status, scale and printer columns."""
    spec = {
        "type": "object",
        "required": ["count"],
        "properties": {
            "count": {"type": "integer", "minimum": 1, "maximum": 16},
            "policy": {"type": "string", "enum": ["contiguous", "spread"], "default": "contiguous"},
            "ids": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
            "owner": {"type": "string", "maxLength": 20},
            "parts": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
                },
            },
        },
        "x-kubernetes-validations": [
            {"rule": "!has(self.ids) || size(self.ids) <= self.count", "message": "no more ids than count"},
            {
                "rule": "!has(oldSelf.owner) || (has(self.owner) && self.owner == oldSelf.owner)",
                "message": "owner can't change",
            },
        ],
    }
    status = {
        "type": "object",
        "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [
            {"name": "Count", "type": "integer", "jsonPath": ".spec.count"},
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {"name": "Policy", "type": "string", "jsonPath": ".spec.policy", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    names = {
        "plural": plural,
        "singular": kind.lower(),
        "kind": kind,
        "shortNames": [plural[:3] + plural[-3:]],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": scope, "versions": [version]},
    }
