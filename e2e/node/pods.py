"""Manifests of pods that run on a real node."""

from collections.abc import Mapping, Sequence
from typing import Any

from e2e.node.image import IMAGE

Json = dict[str, Any]


def container(
    name: str = "main", script: str = "exec sleep 100000", env: Mapping[str, str] | None = None, **fields: Any
) -> Json:
    """Return a container that runs a shell script."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        **fields,
    }


def pod(
    name: str,
    *containers: Json,
    init: Sequence[Json] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod with the network of the host, which ends at once when it is deleted."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "initContainers": list(init),
            "containers": list(containers) or [container()],
            **spec,
        },
    }
