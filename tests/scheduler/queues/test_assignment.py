"""Which queue a namespace belongs to."""

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import convert

from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.scheduler.queues.assignment import assign, quota_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def queue(name: str, age: int = 0, **spec: Any) -> GpuQueue:
    meta = {"name": name, "creationTimestamp": (START - timedelta(days=age)).isoformat()}
    return convert({"metadata": meta, "spec": spec}, GpuQueue)


def test_a_namespace_in_two_queues_belongs_to_the_older_one() -> None:
    queues = [queue("new", 1, namespaces=["ml", "web"]), queue("old", 2, namespaces=["ml"])]
    found = assign(queues, {}, ())
    assert found.queues == {"ml": "old", "web": "new"}
    assert found.taken == {"new": {"ml": "old"}}


def test_queues_of_the_same_age_are_taken_by_name() -> None:
    found = assign([queue("b", namespaces=["ml"]), queue("a", namespaces=["ml"])], {}, ())
    assert found.queues == {"ml": "a"}


def test_a_selector_takes_the_namespaces_with_its_labels() -> None:
    selector = {
        "matchLabels": {"team": "nlp"},
        "matchExpressions": [{"key": "stage", "operator": "NotIn", "values": ["test"]}],
    }
    labels = {"a": {"team": "nlp"}, "b": {"team": "nlp", "stage": "test"}, "c": {}}
    assert assign([queue("nlp", namespaceSelector=selector)], labels, ()).queues == {"a": "nlp"}


def test_namespaces_that_kueue_governs_are_named() -> None:
    found = assign([queue("nlp", namespaces=["a", "b"])], {}, {"b"})
    assert found.kueue == {"nlp": ["b"]}


def test_a_parent_that_is_missing_or_has_a_parent_does_not_count() -> None:
    queues = [
        queue("a", parent="none"),
        queue("b", parent="b"),
        queue("c", parent="d"),
        queue("d", parent="e"),
        queue("e"),
    ]
    found = assign(queues, {}, ())
    assert set(found.invalid) == {"a", "b", "c"}
    assert quota_of(queues[0], found, last=False).parent == ""
    assert quota_of(queues[3], found, last=False).parent == "e"
