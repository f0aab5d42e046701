"""Merging a change into a document. Pure; neither argument is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Levels of nesting that a change may have. Deeper ones have no use and would exhaust the stack.
MAX_DEPTH: Final = 64


def merge_patch(target: object, patch: object) -> Any:
    """RFC 7386: objects merge by key, null deletes, everything else replaces, lists as a whole."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def merge_fields(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Like `merge_patch`, but null at the top is a value: of a field that may be null, or an error."""
    merged = dict(target)
    for key, value in patch.items():
        merged[key] = None if value is None else merge_patch(merged.get(key), value)
    return merged


def too_deep(value: object) -> bool:
    """Whether JSON nests deeper than `MAX_DEPTH`. Does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH):
        following: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                following.extend(item.values())
            elif isinstance(item, list | tuple):
                following.extend(item)
        if not following:
            return False
        level = following
    return True
