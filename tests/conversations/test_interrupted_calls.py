"""A tool call that does not end has one shape in the log, whatever ended its turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.events import Vocabulary
from tests.conversations.harness import QUICK, Harness, events, killed_now, open_harness, say, settled, until
from tests.support.thorough import everyday

End = Callable[[Harness, Conversation], Awaitable[None]]

ALWAYS = {"kind": "AlwaysConfirm"}


async def _interrupt(_: Harness, conversation: Conversation) -> None:
    await conversation.interrupt()
    await settled(conversation)


async def _kill(_: Harness, conversation: Conversation) -> None:
    run = conversation.agent.current
    assert run is not None
    os.kill(run.pid, signal.SIGKILL)
    await settled(conversation)


async def _stop(_: Harness, conversation: Conversation) -> None:
    await conversation.stop_agent()
    await settled(conversation)


async def _stop_at_once(_: Harness, conversation: Conversation) -> None:
    await conversation.stop_agent(force=True)
    await settled(conversation)


async def _restart(_: Harness, conversation: Conversation) -> None:
    await conversation.restart_agent()
    await settled(conversation)


async def _restart_at_once(_: Harness, conversation: Conversation) -> None:
    await conversation.restart_agent(force=True)
    await settled(conversation)


async def _silence(_: Harness, conversation: Conversation) -> None:
    await settled(conversation)


async def _close(_: Harness, conversation: Conversation) -> None:
    await conversation.close()  # as `delete` and the end of the server do


ENDS: Mapping[str, tuple[End, tuple[str, ...], Deadlines]] = {
    "interrupt": (_interrupt, (), QUICK),
    "interrupt, session closed": (_interrupt, ("cancel=ignore",), QUICK),
    "interrupt, process ended": (_interrupt, ("cancel=ignore", "without=close"), QUICK),
    "interrupt, answered with an error": (_interrupt, ("cancel=error",), QUICK),
    "interrupt, answered by a crash": (_interrupt, ("cancel=crash",), QUICK),
    "crash": (_kill, (), QUICK),
    "stop": (_stop, (), QUICK),
    "stop at once": (_stop_at_once, (), QUICK),
    "restart": (_restart, (), QUICK),
    "restart at once": (_restart_at_once, (), QUICK),
    "silence": (_silence, (), attrs.evolve(QUICK, tool_factor=1.0)),
    "deletion": (_close, (), QUICK),
    "deletion, cancel ignored": (_close, ("cancel=ignore", "without=close"), QUICK),
}

_OPEN = {
    "a call": ("!opentool\n!hang", {"kind": "NeverConfirm"}),
    "a call that asks": ("!perm", ALWAYS),
}


def _shape(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that end calls, without what is another one each time."""
    return [
        {name: value for name, value in event.items() if name not in {"id", "timestamp", "parent_id"}}
        for event in found
        if event["kind"] in {"ObservationEvent", "AgentErrorEvent", "UserRejectObservation"}
        or (event["kind"] == "ACPToolCallEvent" and event["status"] in {"completed", "failed"})
    ]


async def _begin(
    harness: Harness, modes: tuple[str, ...], vocabulary: Vocabulary, what: str, silence: float = 1800.0
) -> Conversation:
    text, policy = _OPEN[what]
    conversation = await harness.start(
        *modes,
        vocabulary=vocabulary,
        confirmation_policy=policy,
        settings={"acp_prompt_timeout": silence},
    )
    await conversation.send(say(text), run=True)
    if policy is ALWAYS:
        await until(lambda: conversation.waiting, "a question")
    else:
        calls = conversation.runner.turns._translator._calls
        await until(lambda: any(call.started_id for call in calls.values()), "a tool call")
    await conversation.log.flushed()
    return conversation


async def _after_a_kill(tmp_path: Path, vocabulary: Vocabulary, what: str) -> list[dict[str, Any]]:
    async with open_harness(tmp_path) as harness:
        conversation = await _begin(harness, (), vocabulary, what)
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        return _shape(await events(await harness.supervisor.get(conversation.id)))


_ALL = [(what, vocabulary) for what in _OPEN for vocabulary in Vocabulary]
_MANY = [each for each in _ALL if each != ("a call that asks", Vocabulary.CORE)]
"""What asks is a call as any other in the events; in one vocabulary it shows what it adds."""


@pytest.mark.guarantee(name="what-began-is-ended")
@pytest.mark.parametrize(("what", "vocabulary"), everyday(_MANY, _ALL))
async def test_an_interrupted_call_has_one_shape(tmp_path: Path, vocabulary: Vocabulary, what: str) -> None:
    expected = await _after_a_kill(tmp_path, vocabulary, what)
    assert len(expected) == 1
    words = "waited for an answer. Nothing of it has begun" if "asks" in what else "did not end."
    assert f"Interrupted: this tool call {words}" in str(expected[0])
    for number, (name, (end, modes, deadlines)) in enumerate(ENDS.items()):
        if what == "a call that asks" and (name == "silence" or modes):
            continue  # a person may take their time; an agent that goes on closes the call itself
        (tmp_path / str(number)).mkdir()
        async with open_harness(tmp_path / str(number), deadlines=deadlines) as harness:
            silence = 1.0 if name == "silence" else 1800.0
            conversation = await _begin(harness, modes, vocabulary, what, silence)
            await end(harness, conversation)
            assert _shape(await events(conversation)) == expected, name
