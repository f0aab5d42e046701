"""Merging: against a plain transcription of RFC 7386, and the variant of conversation settings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.settings.merge import MAX_DEPTH, merge_fields, merge_patch, too_deep

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
keys = st.sampled_from("abc")
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def reference(target: Any, patch: Any) -> Any:
    """The RFC's pseudo code, step by step, on values that it may change."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = reference(target.get(name), value)
        return target
    return patch


@given(documents, documents)
def test_merge_is_that_of_the_rfc_and_changes_no_argument(target: Any, patch: Any) -> None:
    expected = reference(copy.deepcopy(target), copy.deepcopy(patch))
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == expected
    assert (target, patch) == before


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    ],
)
def test_null_at_the_top_of_fields_is_a_value(target: Any, patch: Any, expected: Any) -> None:
    assert merge_fields(target, patch) == expected


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def test_depth() -> None:
    assert not too_deep(nested(MAX_DEPTH - 1))
    assert too_deep(nested(MAX_DEPTH))
    # Far past the interpreter's recursion limit, lists too.
    assert too_deep(nested(5000))
    lists: Any = []
    for _ in range(5000):
        lists = [lists]
    assert too_deep(lists)
