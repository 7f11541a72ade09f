"""The codec of the allocation annotation."""

import pytest

from gpufleet.kubernetes.allocation import allocated_gpus, format_allocation, parse_allocation
from gpufleet.kubernetes.annotations import ALLOCATED
from gpufleet.kubernetes.objects import ObjectMeta, Pod, PodSpec


def test_an_allocation_survives_the_annotation() -> None:
    text = format_allocation("node-a", (0, 11, 1023))
    assert text == "node-a:0,11,1023"
    assert parse_allocation(text) == ("node-a", (0, 11, 1023))


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":0", "a:x", "a:0,", "a:,0", "a:-1", "a:²", "a b:0", "a:b:0", "a:" + "9" * 5000]
)
def test_a_malformed_annotation_is_no_allocation(text: str) -> None:
    assert parse_allocation(text) is None


@pytest.mark.parametrize(("node", "gpus"), [("a", (2, 3)), ("b", ()), ("", ())])
def test_only_an_allocation_on_the_node_of_the_pod_counts(node: str, gpus: tuple[int, ...]) -> None:
    pod = Pod(metadata=ObjectMeta(annotations={ALLOCATED: "a:2,3"}), spec=PodSpec(node_name=node))
    assert allocated_gpus(pod) == gpus
