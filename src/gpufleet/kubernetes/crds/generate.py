"""The CustomResourceDefinitions of gpu.scheduling/v1, made from the types.

    python -m gpufleet.kubernetes.crds.generate charts/gpu-scheduler/crds

writes one file per kind; a test holds the files of the chart to what this makes. `demo`
takes `definitions()` as it is.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.crds.schema import Schema, structural_schema
from gpufleet.kubernetes.objects import KubeObject

GROUP = "gpu.scheduling"
VERSION = "v1"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; `wide` ones show with `-o wide` only."""

    name: str
    type: str
    path: str
    description: str
    wide: bool = False

    def render(self) -> Schema:
        """The column as an entry of additionalPrinterColumns."""
        entry = {
            "name": self.name,
            "type": self.type,
            "description": self.description,
            "jsonPath": self.path,
        }
        return {**entry, "priority": 1} if self.wide else entry


_AGE = Column("Age", "date", ".metadata.creationTimestamp", "Time since it was created.")


@dataclass(frozen=True)
class Definition:
    """What a CustomResourceDefinition says beside the schema of its `type`."""

    type: type[KubeObject]
    plural: str
    scope: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def kind(self) -> str:
        """The kind, by the name of its type."""
        return self.type.__name__

    def render(self) -> dict[str, Any]:
        """The manifest."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{self.plural}.{GROUP}",
                "labels": {"app.kubernetes.io/part-of": "gpufleet"},
            },
            "spec": {
                "group": GROUP,
                "scope": self.scope,
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": list(self.short_names),
                    "categories": ["gpu"],
                },
                "versions": [
                    {
                        "name": VERSION,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "additionalPrinterColumns": [column.render() for column in self.columns],
                        "schema": {"openAPIV3Schema": _top(self.type)},
                    }
                ],
            },
        }


CLAIMS = Definition(
    GpuClaim,
    "gpuclaims",
    "Namespaced",
    ("gclaim",),
    (
        Column("Phase", "string", ".status.phase", "How far the claim is."),
        Column("Node", "string", ".status.nodeName", "Node where its GPUs are."),
        Column("GPUs", "integer", ".spec.devices.count", "Number of GPUs asked for."),
        _AGE,
        Column("IDs", "string", ".status.gpuIds", "Allocated GPU ids.", wide=True),
        Column("Policy", "string", ".spec.devices.policy", "Which free GPUs it takes.", wide=True),
        Column("Sharing", "string", ".spec.devices.exclusivity", "Exclusive, Shared or MIG.", wide=True),
        Column("Message", "string", ".status.message", "What it waits for.", wide=True),
    ),
)

NODE_STATUSES = Definition(
    GpuNodeStatus,
    "gpunodestatuses",
    "Cluster",
    ("gns",),
    (
        Column("Total", "integer", ".status.total", "GPUs on the node."),
        Column("Free", "integer", ".status.free", "GPUs that a claim could get."),
        Column("Unhealthy", "integer", ".status.unhealthy", "GPUs that are not Healthy."),
        _AGE,
        Column("Model", "string", ".status.devices[0].model", "Product name of the first GPU.", wide=True),
    ),
)


def definitions() -> list[dict[str, Any]]:
    """All manifests, ready to be applied."""
    return [CLAIMS.render(), NODE_STATUSES.render()]


def write_definitions(folder: Path) -> list[Path]:
    """Write one YAML file per definition into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for definition in definitions():
        file = folder / f"{definition['spec']['names']['plural']}.yaml"
        file.write_text(_HEADER + yaml.safe_dump(definition, sort_keys=False, width=110))
        files.append(file)
    return files


_HEADER = "# Made by `python -m gpufleet.kubernetes.crds.generate charts/gpu-scheduler/crds`; change the types instead.\n"


def _top(kind: type[KubeObject]) -> Schema:
    schema = structural_schema(kind)
    head: Schema = {
        "apiVersion": {"type": "string", "description": "Version of the schema that the object follows."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {"type": "object"},
    }
    return {**schema, "properties": {**head, **_without_metadata(schema["properties"])}}


def _without_metadata(properties: Schema) -> Schema:
    return {name: schema for name, schema in properties.items() if name != "metadata"}


if __name__ == "__main__":
    write_definitions(Path(sys.argv[1] if len(sys.argv) > 1 else "charts/gpu-scheduler/crds"))
