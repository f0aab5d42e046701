"""The checks of a run find what they look for."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.chaos import checks
from tests.support.processes import alive_since


def said(name, source="user"):
    message = {"role": "user", "content": [{"type": "text", "text": f"!tool\n{name}"}]}
    return {"id": name, "kind": "MessageEvent", "source": source, "llm_message": message}


def failed():
    return {"id": "f", "kind": "ConversationErrorEvent", "source": "environment"}


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([], None),
        ([0, 1, 2], None),
        ([0, 2], "a gap"),
        ([1], "a gap"),
        ([0, 1, 1], "a rep"),
        ([0, 1, 0], "or reo"),
    ],
)
def test_sequences(numbers, wrong):
    found = checks.sequence_problems("x", numbers)
    assert (wrong is None and found == []) or wrong in found[0]


def test_differences():
    one, two = {"id": "1", "a": None, "b": [{"c": None}]}, {"id": "2"}
    assert checks.difference_problems("x", [{"id": "1", "b": [{}]}, two], [one, two]) == []
    assert checks.difference_problems("x", [two, one], [one, two])
    assert checks.difference_problems("x", [one], [one, two])
    assert checks.difference_problems("x", [one, two], [one])


def test_times():
    one, two = {"timestamp": "2026-11-21T09:00:00.000001Z"}, {"timestamp": "2026-11-21T09:00:00.000002Z"}
    assert checks.time_problems("x", [one, two]) == []
    assert checks.time_problems("x", [two, one])
    assert checks.time_problems("x", [one, one])


@pytest.mark.parametrize(
    ("events", "accepted", "attempted", "right"),
    [
        (["m0-0"], ["m0-0"], ["m0-0", "m0-1"], True),
        (["m0-0", "m0-1"], ["m0-0"], ["m0-0", "m0-1"], True),  # its answer did not arrive
        ([], ["m0-0"], ["m0-0"], False),
        (["m0-0", "m0-0"], ["m0-0"], ["m0-0"], False),
        (["m0-0", "m0-0"], [], ["m0-0"], False),
        (["m0-1"], [], ["m0-0"], False),
    ],
)
def test_messages(events, accepted, attempted, right):
    found = checks.message_problems("x", [said(name) for name in events], accepted, attempted)
    assert (found == []) is right


@pytest.mark.parametrize(
    ("events", "prompted", "queued", "right"),
    [
        ([said("m0-0"), said("m0-1")], ["m0-0", "m0-1"], 0, True),
        ([said("m0-0"), said("m0-1")], ["m0-0"], 1, True),
        ([said("m0-0"), failed(), said("m0-1")], ["m0-1"], 0, True),
        ([said("m0-0"), said("m0-1")], ["m0-1", "m0-0"], 0, False),
        ([said("m0-0"), said("m0-1")], ["m0-0", "m0-0"], 1, False),
        ([said("m0-0"), said("m0-1")], ["m0-0"], 0, False),
        ([failed(), said("m0-0")], [], 0, False),  # a report comes after its message
        ([said("m0-0"), said("m0-1"), failed()], [], 0, False),  # one report is not one for both
        ([said("m0-0", "agent")], ["m0-0"], 0, False),
    ],
)
def test_prompts(events, prompted, queued, right):
    assert (checks.prompt_problems("x", events, prompted, queued) == []) is right


EXIT = "[info     ] agent exited                   code=None pid=7 signal=15\n"
KILLED = "ostler: the server was killed by signal 9; restarting it\n"


@pytest.mark.parametrize(
    ("text", "signalled", "kills", "wrong"),
    [
        (EXIT, [7], 0, None),
        (EXIT, [8], 0, "agent 7 ended"),
        (f"warden is gone; x\n{EXIT}y containing agents\n", [], 0, None),
        (f"warden is gone; x\nz containing agents\n{EXIT}", [], 0, "agent 7 ended"),
        (KILLED, [], 1, None),
        (KILLED, [], 0, "0 servers were killed"),
        ("ostler: the server ended with status 120; restarting it\n", [], 1, "status 120"),
        ("x\nTraceback (most recent call last):\n", [], 0, "a failure"),
    ],
)
def test_the_log(text, signalled, kills, wrong):
    found = checks.log_problems(text, signalled, kills)
    assert (wrong is None and found == []) or wrong in found[0]


@pytest.mark.parametrize(
    ("shown", "right"),
    [
        ([("a", 5, 2), ("b", 6, 1), ("c", None, None)], True),
        ([("a", 5, 9)], False),
        ([("a", 5, 1), ("b", 5, 1)], False),
        ([("a", 1, 1)], False),
    ],
)
def test_the_list_of_agents(shown, right):
    agents = [dict(zip(("conversation_id", "pid", "processes"), each, strict=True)) for each in shown]
    assert (checks.agents_problems(agents, {1: "the server"}, {"a": 3}) == []) is right


def test_a_number_that_was_given_again_is_another_process():
    with subprocess.Popen(["sleep", "60"]) as process:
        now = time.time()
        assert alive_since(process.pid, now)
        assert not alive_since(process.pid, now - 60)
        process.kill()
        process.wait()
        assert not alive_since(process.pid, now)
