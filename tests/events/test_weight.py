"""What an encoded event takes of memory: bounds of waiting events count its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from supervisor.events import Message, MessageEvent, TextContent, dump_event, dumps, new_event_id
from supervisor.tight import tight

KEPT = 100
MORE_BYTES = 200
"""What an object of bytes, and its place in a list, may take besides the bytes."""


def said(text: str) -> bytes:
    message = Message(role="user", content=(TextContent(text=text),))
    return dump_event(MessageEvent(id=new_event_id(), source="user", llm_message=message))


@pytest.mark.parametrize("size", [1, 1_000, 100_000])
@pytest.mark.parametrize("encode", [said, dumps, lambda text: tight(text.encode())])
def test_it_takes_the_memory_of_its_bytes(encode: Callable[[str], bytes], size: int) -> None:
    kept = [encode("x")]  # compiles the encoder
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [encode(f"{number} " + "x" * size) for number in range(KEPT)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= sum(map(len, kept)) + KEPT * MORE_BYTES
