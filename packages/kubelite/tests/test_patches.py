"""Field sets, patches and selectors compared with simple reference implementations."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubelite.errors import ApiError
from kubelite.patch.field_sets import compare, field_set, intersect, leaf_paths, subtract, union
from kubelite.patch.json_patch import json_patch, merge_patch
from kubelite.selectors import parse_labels

_names = st.sampled_from(["a", "b", "c"])
_values: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(_names, inner, min_size=1, max_size=3), max_leaves=8
)
_objects = st.dictionaries(_names, _values, max_size=3)
_sets = _objects.map(lambda item: field_set(None, item))
_quick = settings(max_examples=150, deadline=None)


def _paths(item: Any, path: str = "") -> set[str]:
    if not isinstance(item, dict) or not item:
        return {path}
    return {leaf for name, value in item.items() for leaf in _paths(value, f"{path}.{name}")}


@_quick
@given(_objects)
def test_the_fields_of_an_object_are_its_leaves(item: dict[str, Any]) -> None:
    assert set(leaf_paths(field_set(None, item))) == (_paths(item) if item else set())


@_quick
@given(_sets, _sets)
def test_difference_and_intersection_make_the_whole(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert union(subtract(a, b), intersect(a, b)) == a
    assert subtract(a, a) == {}
    assert intersect(a, a) == a


@_quick
@given(_objects, _objects)
def test_compare_returns_exactly_the_changed_fields(old: dict[str, Any], new: dict[str, Any]) -> None:
    changed, removed = compare(None, old, new)
    assert (changed, removed) == ({}, {}) if old == new else changed or removed
    for path in leaf_paths(changed):
        assert _at(old, path) != _at(new, path)
    for path in leaf_paths(removed):
        assert _at(new, path) is None


def _at(item: Any, path: str) -> Any:
    for step in path.strip(".").split("."):
        item = item.get(step) if isinstance(item, dict) else None
    return item


@_quick
@given(_objects, _objects)
def test_a_merge_patch_leads_from_one_object_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = repr(old)
    assert merge_patch(old, _merge_between(old, new)) == new
    assert repr(old) == before


def _merge_between(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    return patch | {name: _merge_between(old.get(name), value) for name, value in new.items()}


@_quick
@given(_objects, _names, _values)
def test_a_json_patch_adds_and_removes_without_touching_the_original(
    item: dict[str, Any], name: str, value: Any
) -> None:
    before = repr(item)
    added = json_patch(item, [{"op": "add", "path": f"/{name}", "value": value}])
    assert added == {**item, name: value}
    removed = json_patch(added, [{"op": "remove", "path": f"/{name}"}])
    assert removed == {key: one for key, one in item.items() if key != name}
    assert repr(item) == before


@_quick
@given(
    st.dictionaries(_names, st.sampled_from(["x", "y", ""])),
    _names,
    st.lists(st.sampled_from(["x", "y"]), min_size=1),
)
def test_label_selectors_match_as_written(labels: dict[str, str], key: str, values: list[str]) -> None:
    def holds(text: str) -> bool:
        predicate = parse_labels(text)
        assert predicate is not None
        return predicate(labels)

    listed = ", ".join(values)
    assert holds(f"{key} in ({listed})") == (labels.get(key) in values)
    assert holds(f"{key} notin ({listed})") == (labels.get(key) not in values)
    assert holds(key) == (key in labels)
    assert holds(f"!{key}") == (key not in labels)
    assert holds(f"{key}={values[0]},{key}") == (labels.get(key) == values[0])
    assert holds(f"{key}=") == (labels.get(key) == "")


def test_a_json_patch_cannot_inflate_an_object() -> None:
    doubled = {"op": "copy", "from": "/data", "path": "/data/-"}
    with pytest.raises(ApiError, match="copies add more than") as raised:
        json_patch({"data": ["x" * 1000]}, [doubled] * 16)
    assert raised.value.code == 422
