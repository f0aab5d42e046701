from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.reading.weight import LARGE_BYTES, LARGE_CONTAINERS, MAX_DEPTH, MAX_NODES, is_large, too_heavy

texts = st.text(alphabet='[]{},:"\\aé\n', max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def nodes(value: Any) -> int:
    """Values, keys among them."""
    if isinstance(value, dict):
        return 1 + sum(1 + nodes(item) for item in value.values())
    return 1 + sum(map(nodes, value)) if isinstance(value, list) else 1


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@pytest.mark.guarantee(name="no-agent-starves-the-others")
@given(values, st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))
def test_never_counts_less_than_there_is(value: Any, most: int, deepest: int, window: int) -> None:
    frame = orjson.dumps(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("supervisor.reading.weight.WINDOW_BYTES", window)
        reason = too_heavy(frame, most, deepest)
    if nodes(value) > most or depth(value) > deepest:
        assert reason is not None


@pytest.mark.guarantee(name="no-agent-starves-the-others")
@given(values, st.integers(1, 9))
def test_what_is_within_its_limits_is_not_refused(value: Any, window: int) -> None:
    """An empty list or object counts like one with a member: 1 for each bracket, comma and colon."""
    frame = orjson.dumps(value)
    outside = orjson.dumps(_without_texts(value))
    most = 1 + sum(outside.count(byte) for byte in (b"[", b"{", b",", b":"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("supervisor.reading.weight.WINDOW_BYTES", window)
        assert too_heavy(frame, most, max(1, depth(value))) is None


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(number): _without_texts(item) for number, item in enumerate(value.values())}
    if isinstance(value, list):
        return [_without_texts(item) for item in value]
    return "" if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("frame", "refused"),
    [
        (b'{"text":"' + b"[{,:" * MAX_NODES + b'"}', False),
        (b'{"text":"' + b'\\"[[\\\\' * MAX_NODES + b'"}', False),
        (b'{"text":"\\\\",' + b'"a":[],' * MAX_NODES + b'"b":1}', True),
        (b"[" + b"[]," * MAX_NODES + b"1]", True),
        (b"{" + b",".join(b'"%d":1' % n for n in range(MAX_NODES)) + b"}", True),
        (b"[" + b'"",' * MAX_NODES + b"1]", True),
        (b"[" + b"1," * (MAX_NODES - 10) + b"1]", False),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, False),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), True),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), True),
    ],
)
def test_what_is_refused(frame: bytes, refused: bool) -> None:
    assert (too_heavy(frame) is not None) is refused


def test_what_goes_to_a_thread() -> None:
    assert not is_large(b"x" * LARGE_BYTES)
    assert is_large(b"x" * (LARGE_BYTES + 1))
    assert is_large(b"[]," * (LARGE_CONTAINERS + 1))
    assert not is_large(b'{"update":{"content":{"text":"' + b"word " * 1000 + b'"}}}')
