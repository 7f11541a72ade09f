"""Generate the CustomResourceDefinitions of gpu.scheduling/v1 from the types.

    python -m gpufleet.kubernetes.crds.generate charts/gpu-scheduler/crds

writes one file per kind. A test checks that the chart's files are up to date. The demo applies
`definitions()` directly.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpufleet.kubernetes.client.resources import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    GPU_QUEUES,
    GPU_REPAIRS,
    Resource,
)
from gpufleet.kubernetes.crds.schema import Schema, structural_schema
from gpufleet.kubernetes.objects import KubeObject


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; `wide` columns appear only with `-o wide`."""

    name: str
    type: str
    path: str
    description: str
    wide: bool = False

    def render(self) -> Schema:
        """Return the column as an entry of additionalPrinterColumns."""
        entry = {
            "name": self.name,
            "type": self.type,
            "description": self.description,
            "jsonPath": self.path,
        }
        return {**entry, "priority": 1} if self.wide else entry


_AGE = Column("Age", "date", ".metadata.creationTimestamp", "Time since creation.")


@dataclass(frozen=True)
class Definition:
    """A CustomResourceDefinition; the schema comes from the type of its `resource`."""

    resource: Resource[Any]
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]

    def render(self) -> dict[str, Any]:
        """Return the manifest."""
        resource = self.resource
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{resource.plural}.{resource.group}",
                "labels": {"app.kubernetes.io/part-of": "gpufleet"},
            },
            "spec": {
                "group": resource.group,
                "scope": "Namespaced" if resource.namespaced else "Cluster",
                "names": {
                    "kind": resource.kind,
                    "listKind": f"{resource.kind}List",
                    "plural": resource.plural,
                    "singular": resource.kind.lower(),
                    "shortNames": list(self.short_names),
                    "categories": ["gpu"],
                },
                "versions": [
                    {
                        "name": resource.version,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "additionalPrinterColumns": [column.render() for column in self.columns],
                        "schema": {"openAPIV3Schema": _object_schema(resource.type)},
                    }
                ],
            },
        }


CLAIMS = Definition(
    GPU_CLAIMS,
    ("gclaim",),
    (
        Column("Phase", "string", ".status.phase", "Phase of the claim."),
        Column("Node", "string", ".status.nodeName", "Node of the allocated GPUs."),
        Column("GPUs", "integer", ".spec.devices.count", "Number of GPUs requested."),
        _AGE,
        Column("IDs", "string", ".status.gpuIds", "Ids of the allocated GPUs.", wide=True),
        Column("Policy", "string", ".spec.devices.policy", "Which free GPUs to take.", wide=True),
        Column("Sharing", "string", ".spec.devices.exclusivity", "Exclusive, Shared or MIG.", wide=True),
        Column(
            "Message", "string", ".status.message", "What happened, or why the claim is pending.", wide=True
        ),
    ),
)

NODE_STATUSES = Definition(
    GPU_NODE_STATUSES,
    ("gns",),
    (
        Column("Total", "integer", ".status.total", "GPUs on the node."),
        Column("Free", "integer", ".status.free", "GPUs that can be allocated."),
        Column("Unhealthy", "integer", ".status.unhealthy", "GPUs that are not Healthy."),
        _AGE,
        Column("Model", "string", ".status.devices[0].model", "Product name of the first GPU.", wide=True),
    ),
)

QUEUES = Definition(
    GPU_QUEUES,
    ("gq",),
    (
        Column("Used", "number", ".status.used", "GPUs that pods of the queue have now."),
        Column(
            "Guaranteed", "integer", ".spec.guaranteed.gpus", "GPUs that the queue gets when it needs them."
        ),
        Column("Borrowed", "number", ".status.borrowed", "GPUs in use beyond the guarantee."),
        Column("Pending", "number", ".status.pending", "GPUs that waiting pods request."),
        Column("Budget", "integer", ".status.budget.percent", "Used part of the budget in percent."),
        _AGE,
        Column("Limit", "integer", ".spec.limit.gpus", "GPUs that the queue never exceeds.", wide=True),
        Column("Weight", "integer", ".spec.weight", "The queue's part beyond the guarantees.", wide=True),
        Column("Parent", "string", ".spec.parent", "GpuQueue of the department.", wide=True),
        Column("Share", "number", ".status.share", "The queue's part of the recent use.", wide=True),
    ),
)


REPAIRS = Definition(
    GPU_REPAIRS,
    ("grepair",),
    (
        Column("Phase", "string", ".status.phase", "What happens now."),
        Column("Cause", "string", ".status.cause", "Signal of the first finding."),
        Column("Since", "date", ".status.since", "When the phase began."),
        Column("Message", "string", ".status.message", "What the repair waits for, or why it stopped."),
        Column("Action", "string", ".status.action", "The repair that is tried.", wide=True),
        Column("Faults", "integer", ".status.episode", "Number of faults so far.", wide=True),
    ),
)


def definitions() -> list[dict[str, Any]]:
    """Return all manifests, ready to be applied."""
    return [CLAIMS.render(), NODE_STATUSES.render(), QUEUES.render(), REPAIRS.render()]


def write_definitions(folder: Path) -> list[Path]:
    """Write one YAML file per definition into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for definition in definitions():
        file = folder / f"{definition['spec']['names']['plural']}.yaml"
        file.write_text(_HEADER + yaml.safe_dump(definition, sort_keys=False, width=110))
        files.append(file)
    return files


_HEADER = "# Generated by `python -m gpufleet.kubernetes.crds.generate charts/gpu-scheduler/crds`; edit the types instead.\n"


def _object_schema(kind: type[KubeObject]) -> Schema:
    schema = structural_schema(kind)
    common: Schema = {
        "apiVersion": {"type": "string", "description": "API version of the object."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
    }
    return {**schema, "properties": common | schema["properties"] | common}


if __name__ == "__main__":
    write_definitions(Path(sys.argv[1] if len(sys.argv) > 1 else "charts/gpu-scheduler/crds"))
