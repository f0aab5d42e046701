"""What a follower of an agent's output gets: each line and frame once, and a count of the dropped ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from supervisor.acp.trace import TRACE_FRAMES, Trace
from supervisor.agents.pipes import TAIL_LINES, LineTail
from supervisor.conversations.agent.lifecycle.last_output import FRAMES_EARLIER, LastOutput
from supervisor.conversations.agent.stderr_tail import StderrTail


class Process:
    """The standard error of a process, without one."""

    def __init__(self):
        self.tail = LineTail()

    def stderr_timed(self):
        return self.tail.timed()

    def stderr_numbered(self):
        return self.tail.numbered()


MASK = SimpleNamespace(
    text=lambda text: text.replace("secret", "***"), beginning=lambda text: text.replace("secret", "***")
)


class Followed:
    def __init__(self):
        self.output = LastOutput(SimpleNamespace(now=SimpleNamespace(session_id=None)))
        self.mark = self.frames_mark = None
        self.start()

    def start(self):
        """Another process of the agent."""
        self.process, self.trace = Process(), Trace()
        connection = SimpleNamespace(trace=self.trace, non_protocol_lines=[])
        self.tail = StderrTail(self.process, connection, MASK)
        self.output.begin(SimpleNamespace(stderr_tail=self.tail, plan=SimpleNamespace(mask=MASK)))

    def write(self, text):
        self.process.tail.feed(text.encode())

    def look(self):
        found = self.output.stderr_after(self.mark)
        self.mark = found.mark
        return found.items, found.skipped

    def look_at_frames(self):
        found = self.output.trace_after(self.frames_mark)
        self.frames_mark = found.mark
        return [line.text for line in found.items], found.skipped


@pytest.fixture
def followed():
    return Followed()


def test_a_line_comes_once_when_it_has_ended(followed):
    followed.write("one\ntwo secret\nthr")
    assert followed.look() == (["one", "two ***"], 0)
    followed.write("ee\n")
    assert followed.look() == (["three"], 0)
    assert followed.look() == ([], 0)


def test_an_unfinished_line_comes_when_its_process_has_ended(followed):
    followed.write("one\nlast words")
    assert followed.look() == (["one"], 0)
    followed.tail.ended()
    assert followed.look() == (["last words"], 0)
    followed.start()
    followed.write("two\n")
    assert followed.look() == (["two"], 0)


@pytest.mark.parametrize("pieces", [1, 7])
def test_dropped_lines_are_counted(followed, pieces):
    followed.look()
    lines = "".join(f"{number}\n" for number in range(TAIL_LINES + 30))
    size = len(lines) // pieces + 1
    for start in range(0, len(lines), size):
        followed.write(lines[start : start + size])
    items, skipped = followed.look()
    assert (len(items), skipped) == (TAIL_LINES, 30)
    assert items[0] == "30"


def test_the_unseen_lines_of_an_earlier_process_are_counted(followed):
    followed.write("one\n")
    followed.look()
    followed.write("two\nthree\n")
    followed.tail.ended()
    followed.start()
    followed.write("four\n")
    assert followed.look() == (["four"], 2)


def test_a_frame_comes_once_also_from_an_earlier_process(followed):
    followed.trace.record("<", 0.0, b"1 secret")
    assert followed.look_at_frames() == (["1 ***"], 0)
    followed.trace.record("<", 0.0, b"2")
    followed.start()
    followed.trace.record(">", 0.0, b"3")
    assert followed.look_at_frames() == (["2", "3"], 0)
    assert followed.look_at_frames() == ([], 0)


def test_dropped_frames_are_counted(followed):
    followed.look_at_frames()
    for number in range(TRACE_FRAMES + 5):
        followed.trace.record("<", 0.0, str(number).encode())
    items, skipped = followed.look_at_frames()
    assert (items[0], len(items), skipped) == ("5", TRACE_FRAMES, 5)
    for number in range(FRAMES_EARLIER + 5):
        followed.trace.record("<", 0.0, str(number).encode())
    followed.start()
    items, skipped = followed.look_at_frames()
    assert (items[0], len(items), skipped) == ("5", FRAMES_EARLIER, 5)


def test_numbers_of_another_object_mean_nothing(followed):
    followed.write("one\n")
    other = Followed()
    found = followed.output.stderr_after(other.output.stderr_after(None).mark)
    assert (found.again, found.items, found.skipped) == (True, ["one"], 0)
