"""The chart's manifests are up to date and match the documentation."""

from pathlib import Path
from typing import Any

import pytest

from gpufleet.kubernetes.crds.generate import definitions, write_definitions
from gpufleet.kubernetes.crds.gpu_queue import Budget, Guarantee, QueueSpec

CHART = Path(__file__).parents[3] / "charts" / "gpu-scheduler" / "crds"


def test_the_charts_files_are_up_to_date(tmp_path: Path) -> None:
    made = {file.name: file.read_text() for file in write_definitions(tmp_path)}
    kept = {file.name: file.read_text() for file in CHART.glob("*.yaml")}
    assert kept == made, "run: python -m gpufleet.kubernetes.crds.generate charts/gpu-scheduler/crds"


def test_names_and_scopes_are_the_documented_ones() -> None:
    facts = {
        (d["spec"]["names"]["kind"], d["spec"]["scope"], *d["spec"]["names"]["shortNames"])
        for d in definitions()
    }
    assert facts == {
        ("GpuClaim", "Namespaced", "gclaim"),
        ("GpuNodeStatus", "Cluster", "gns"),
        ("GpuQueue", "Cluster", "gq"),
        ("GpuRepair", "Cluster", "grepair"),
    }


@pytest.mark.parametrize("manifest", definitions(), ids=lambda m: str(m["metadata"]["name"]))
def test_every_field_has_a_description_for_kubectl_explain(manifest: dict[str, Any]) -> None:
    def unexplained(schema: dict[str, Any], path: str) -> list[str]:
        missing = []
        for name, part in schema.get("properties", {}).items():
            if "description" not in part and path + name != ".metadata":
                missing.append(f"{path}{name}")
            missing += unexplained(part, f"{path}{name}.")
            missing += unexplained(part.get("items", {}), f"{path}{name}[].")
        return missing

    (version,) = manifest["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert unexplained(version["schema"]["openAPIV3Schema"], ".") == []


def test_documented_fields_keep_their_wire_names() -> None:
    claim, node, queue, repair = (
        d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] for d in definitions()
    )
    spec = claim["spec"]["properties"]
    assert {"count", "policy", "preferIds", "exclusivity"} <= set(spec["devices"]["properties"])
    assert {"mode", "minBandwidthGBps"} <= set(spec["topology"]["properties"])
    assert {"selector", "gangRef"} <= set(spec)
    documented = {"phase", "nodeName", "gpuIds", "allocated", "message"}
    assert documented <= set(claim["status"]["properties"])
    device = node["status"]["properties"]["devices"]["items"]["properties"]
    assert {"id", "inUseBy", "health", "bandwidthGBps", "island"} <= set(device)
    assert {"phase", "cause", "message", "history"} <= set(repair["status"]["properties"])
    assert set(queue["spec"]["properties"]) == {
        "namespaces",
        "namespaceSelector",
        "guaranteed",
        "limit",
        "weight",
        "parent",
        "budget",
    }
    assert {"used", "guaranteed", "borrowed", "pending", "budget"} <= set(queue["status"]["properties"])


@pytest.mark.parametrize(
    ("kind", "value", "valid"),
    [
        (Guarantee, {"gpus": 2, "models": [{"model": "H100", "gpus": 2}]}, True),
        (Guarantee, {"gpus": 1, "models": [{"model": "H100", "gpus": 2}]}, False),
        (Budget, {"gpuHours": 1.0}, True),
        (Budget, {"gpuHours": 1.0, "cost": 1.0}, False),
        (Budget, {}, False),
        (Budget, {"cost": 0.0}, False),
        (QueueSpec, {"guaranteed": {"gpus": 2}, "limit": {"gpus": 2}}, True),
        (QueueSpec, {"guaranteed": {"gpus": 3}, "limit": {"gpus": 2}}, False),
        (QueueSpec, {"namespaces": ["a"], "namespaceSelector": {}}, False),
    ],
)
def test_the_rules_of_queues_reject_contradictions(kind: Any, value: dict[str, Any], valid: bool) -> None:
    assert all(rule.holds(value) for rule in kind.rules) == valid
