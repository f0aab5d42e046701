"""Whatever gathers what an agent says takes eight times as long for eight times as much, and not longer.

Each place is given small pieces; the work for 4 MB is compared with that for half of one (with --thorough for
8 MB and for 1 MB), within one run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from supervisor.acp import Trace
from supervisor.acp.framing import FrameSplitter
from supervisor.acp.output import OutputPool, OutputRing
from supervisor.agents.pipes import LineTail
from supervisor.conversations.history.prompt import transcript
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES, Originals
from supervisor.conversations.recording.bounds.truncation import Gathered
from supervisor.conversations.recording.effects import Usage
from supervisor.credentials.masking import Masker
from supervisor.journal.rows import Frame
from tests.conversations.world import Sink, World
from tests.support.thorough import everyday

SMALL: Final = everyday(500_000, 1_000_000)
LARGE: Final = 8 * SMALL
MOST: Final = 10
"""How many times the work of SMALL that of LARGE may be. Quadratic work would be sixty-four times as much."""

PIECE: Final = 400
SECRET: Final = "correct-horse-battery-staple"


def work(place: Callable[[int], None], size: int) -> float:
    """CPU seconds of one run. The garbage collector waits: it walks what other tests left behind."""
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        place(size)
        return time.process_time() - begin
    finally:
        gc.enable()


def is_proportional(place: Callable[[int], None]) -> bool:
    """Whether one look finds it so. What slows the machine down for a while slows both sizes down."""
    before = work(place, SMALL)
    large = work(place, LARGE)
    small = (before + work(place, SMALL)) / 2
    return large <= MOST * max(small, 0.002)


def pieces(size: int, piece: int = PIECE) -> range:
    return range(size // piece)


def world() -> World:
    made = World(core=False, confirming=False)
    made.log = made.recorder.log = cast(Any, _Nowhere())
    return made


class _Nowhere(Sink):
    """Forgets what it is given: what is measured is our gathering, not the test's."""

    def append(self, rows: Any, record: Any = None, blobs: Any = ()) -> int:
        self.last_seq += len(rows)
        return self.last_seq

    def publish(self, frame: Frame) -> None:
        pass


def _said(kind: str) -> Callable[[int], None]:
    def run(size: int) -> None:
        made = world()
        update = {"sessionUpdate": kind, "content": {"type": "text", "text": "x" * PIECE}}
        for _ in pieces(size):
            made.update({"sessionId": "s", "update": update})
        made.end()

    return run


def _call(fields: Callable[[str], dict[str, Any]], *, interleaved: bool = False) -> Callable[[int], None]:
    def run(size: int) -> None:
        made = world()
        for number in pieces(size):
            call = f"call-{number % 2 if interleaved else 0}"
            update = {"sessionUpdate": "tool_call_update", "toolCallId": call, **fields("x" * PIECE)}
            made.update({"sessionId": "s", "update": update})
        made.end()

    return run


def _open_calls(size: int) -> None:
    made = world()
    for number in pieces(size, 2_000):
        update = {"sessionUpdate": "tool_call", "toolCallId": f"c{number}", "rawInput": "x" * 2_000}
        made.update({"sessionId": "s", "update": update})
    made.end()


def _states(size: int) -> None:
    made = world()
    for number in pieces(size):
        entries = [{"content": f"{number}" + "x" * PIECE, "priority": "high", "status": "pending"}]
        made.update({"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": entries}})
    made.end()


def _usage(size: int) -> None:
    total: dict[str, Any] = {}
    for number in pieces(size):
        total = usage.with_report(total, Usage(number, size, float(number)))


def _gathered(size: int) -> None:
    text = Gathered("b", 1000, Originals())
    for _ in pieces(size, 50):
        text.add("x" * 50)
    text.close()


def _folded(size: int) -> None:
    text = Gathered("b", 1000, Originals())
    for number in pieces(size):
        text.add("x" * PIECE)
        if number % 100 == 0:
            text.fold(1000)
    text.close()


def _masked(piece: str) -> Callable[[int], None]:
    def run(size: int) -> None:
        stream = Masker([SECRET]).stream()
        for _ in pieces(size, len(piece)):
            stream.feed(piece)
        stream.flush()

    return run


def _ring(limit: int) -> Callable[[int], None]:
    def run(size: int) -> None:
        pool = OutputPool(limit)
        rings = [OutputRing(limit, pool), OutputRing(limit, pool)]
        for number in pieces(size, 100):
            rings[number % 2].add(b"x" * 100)
        rings[0].text(final=True)

    return run


def _lines(size: int) -> None:
    tail = LineTail()
    for number in pieces(size, 50):
        tail.feed(b"x" * 49 + (b"\n" if number % 100 == 0 else b"x"))


def _trace(size: int) -> None:
    trace = Trace()
    for _ in pieces(size):
        trace.record("<", 0.0, b"x" * PIECE)


def _frames(size: int) -> None:
    splitter = FrameSplitter()
    for _ in pieces(size):
        splitter.feed(b"x" * PIECE)
    splitter.feed(b"\n")


def _transcript(size: int) -> None:
    transcript(("User", "x" * PIECE) for _ in pieces(size))


PLACES: Final = {
    "text": _said("agent_message_chunk"),
    "thoughts": _said("agent_thought_chunk"),
    "shell output": _call(lambda text: {"_meta": {"terminal_output_delta": {"data": text}}}),
    "shell output, two calls": _call(
        lambda text: {"_meta": {"terminal_output_delta": {"data": text}}}, interleaved=True
    ),
    "shell output, whole": _call(lambda text: {"_meta": {"terminal_output": {"data": text}}}),
    "content": _call(lambda text: {"content": [{"type": "text", "text": text}]}),
    "raw output, two calls": _call(lambda text: {"rawOutput": {"o": text}}, interleaved=True),
    "open calls": _open_calls,
    "states": _states,
    "usage": _usage,
    "a gathered text": _gathered,
    "a text that makes room": _folded,
    "masking": _masked("x" * 50),
    "masking the beginning of a secret": _masked(SECRET[:-1]),
    "masking a secret in pieces": _masked(SECRET[:5] * 10),
    "output of a terminal": _ring(4_000_000),
    "output of a small terminal": _ring(100),
    "standard error": _lines,
    "trace": _trace,
    "one long frame": _frames,
    "a transcript": _transcript,
}
"""Every place where what an agent says is put together, fed with about so many bytes."""


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("place", PLACES)
def test_eight_times_as_much_is_no_more_than_ten_times_the_work(place: str) -> None:
    # More looks where the machine was busy: work that is quadratic stays so.
    assert any(is_proportional(PLACES[place]) for _ in range(9)), place


def test_an_agent_that_repeats_everything_is_measured_once() -> None:
    """The whole content with each update is legal; nothing walks, dumps or cuts it before it is recorded."""
    made = world()
    block = {"type": "text", "text": "x" * 1000}
    content: list[dict[str, Any]] = []
    packed = 0
    card = None
    for _ in range(500):
        content.append(block)
        update = {"sessionUpdate": "tool_call_update", "toolCallId": "c", "content": list(content)}
        made.update({"sessionId": "s", "update": update})
        card = card or made.translator._calls["c"]
        packed += len(card._sizes)
    assert packed == 0
    assert card is not None
    assert card._fresh == ("content",)


def test_a_blob_is_full_before_the_next_begins() -> None:
    text = Gathered("b", 1000, Originals())
    attachments = [attachment for _ in range(400) for attachment in text.add("x" * 65536)]
    attachments += text.close().attachments
    assert sum(len(attachment.body) for attachment in attachments) == 400 * 65536
    assert [len(attachment.body) for attachment in attachments[:-1]] == [BLOB_BYTES] * (len(attachments) - 1)
    assert len({attachment.blob_id for attachment in attachments}) == len(attachments)
