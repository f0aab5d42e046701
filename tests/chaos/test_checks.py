"""The checks of a run find what they look for."""

from __future__ import annotations

import pytest
from chaos import checks


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
