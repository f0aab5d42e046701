"""What an agent wrote where no messages are expected: when it is the reason of something, and when not."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from supervisor.agents.endings import ExitStatus
from supervisor.conversations.agent.stderr_tail import TAIL_LINES
from supervisor.conversations.conversation import Conversation
from supervisor.events import Vocabulary
from tests.conversations.harness import (
    PATIENCE_SECONDS,
    answer,
    events,
    kinds,
    one,
    open_harness,
    ready_pid,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)

UNSAID = "The agent ended its turn without an answer."


def finish(found: list[dict[str, Any]]) -> dict[str, Any]:
    (action,) = [e for e in found if (e.get("action") or {}).get("kind") == "FinishAction"]
    return action


async def seen(conversation: Conversation, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The events, once they are enough."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not enough(found := await events(conversation)):
        assert time.monotonic() < end, found
        await until(lambda: True)
    return found


async def exited(conversation: Conversation) -> dict[str, Any]:
    """How the agent's process ended, which is told a moment after the turn's end."""
    found = await seen(conversation, lambda found: bool(states(found, "agent_exit")))
    return states(found, "agent_exit")[-1]  # type: ignore[no-any-return]


# -- why an agent ended


async def test_what_an_agent_says_on_stdout_before_it_leaves_is_told(tmp_path: Path) -> None:
    """As Kimi CLI 1.52 does, with status 0."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(
            "farewell=scripted-cli is no longer maintained. Use scripted-code."
        )
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert "exited with code 0" in error["detail"]
        assert error["detail"].endswith("Use scripted-code.")
        # It ended on purpose: another try would end alike.
        assert error["classification"]["retryable"] is False
        assert error["classification"]["user_action"] == "settings"


async def test_an_agent_that_crashes_before_it_answers_may_be_tried_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("crash=init:3")
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["classification"]["retryable"] is True


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize(
    "said", ["Internal error", "internal error.", "An unexpected error occurred", "Error"]
)
async def test_an_error_without_a_cause_comes_with_the_last_words(tmp_path: Path, said: str) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "!complain of before")
        told = await turn(conversation, f"!complain KeyError: 'model'\n!error -32603 {said}")
        detail = one(told, "ConversationErrorEvent")["detail"]
        assert detail == f"[-32603] {said} Its last words:\nKeyError: 'model'"


async def test_an_error_with_a_cause_is_told_as_it_is(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        told = await turn(conversation, "!complain noise\n!error -32603 Internal error: no such model")
        assert one(told, "ConversationErrorEvent")["detail"] == "[-32603] Internal error: no such model"


async def test_a_start_that_fails_without_a_cause_comes_with_the_last_words(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("banner=1", "error=new:-32603:Internal error")
        detail = one(await turn(conversation, "hello"), "ConversationErrorEvent")["detail"]
        assert detail == "[-32603] Internal error Its last words:\nWelcome to the scripted agent, line 1"


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("accept", [True, False])
async def test_an_end_without_a_word_after_a_rejection_is_no_fault(tmp_path: Path, accept: bool) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy={"kind": "AlwaysConfirm"})
        await turn(conversation, "!complain an old warning")
        await conversation.send(say("!complain a warning\n!stopif"), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        await conversation.respond(accept, "no")
        await settled(conversation)
        said = answer(await events(conversation))
        rejected = "A tool call was rejected, and the agent ended its turn without a word."
        assert said.startswith(rejected) is not accept
        assert ("a warning" in said) is accept
        assert conversation.record.now.execution_status == "finished"


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_what_an_agent_says_before_it_has_the_prompt_is_not_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gptme, which greets in each new session: here, while the message is made durable."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("greets=0.3")
        runner = conversation.runner
        durable = runner._hand_over._handed_over

        async def greeted() -> None:
            await until(lambda: runner.turns._translator.spoke, "the banner")
            await durable()

        monkeypatch.setattr(runner._hand_over, "_handed_over", greeted)
        found = await turn(conversation, "hello")
        assert answer(found) == "echo: hello "
        (banner,) = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "agent"]
        assert banner["llm_message"]["content"][0]["text"] == "Welcome to it. "


async def test_both_outputs_are_told_of_an_agent_that_crashes(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("stderr=1")
        found = await turn(conversation, "!raw on stdout\n!text a\n!crash 3")
        assert one(found, "ConversationErrorEvent")["detail"].splitlines()[1:] == [
            "scripted agent: fatal line 1",
            "on stdout",
        ]
        ended = await exited(conversation)
        assert ended["last_words"] == ["scripted agent: fatal line 1", "on stdout"]


async def test_the_last_line_counts_however_many_were_before(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("stderr=0")
        detail = one(await turn(conversation, "!noise 1000\n!raw why\n!crash 1"), "ConversationErrorEvent")[
            "detail"
        ]
        assert detail.endswith("\nwhy")
        assert len(detail.splitlines()) == 1 + TAIL_LINES


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "137", "143"])
async def test_the_words_of_an_agent_that_somebody_else_ended_are_not_the_reason(
    tmp_path: Path, how: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("stderr=0")
        found = await turn(conversation, f"!complain deprecated option\n!raw a banner\n!text a\n!crash {how}")
        detail = one(found, "ConversationErrorEvent")["detail"]
        assert "ended from outside" in detail
        assert "deprecated" not in detail
        assert "banner" not in detail
        ended = await exited(conversation)
        assert (ended["from_outside"], ended["turn_active"]) == (True, True)


async def test_the_words_of_an_agent_that_faults_are_its_reason(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("stderr=1")
        detail = one(await turn(conversation, "!crash SIGABRT"), "ConversationErrorEvent")["detail"]
        assert "SIGABRT" in detail
        assert detail.endswith("fatal line 1")


async def test_an_idle_agent_that_is_killed_has_no_reason_of_its_own(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "!complain only a warning")
        pid = ready_pid(conversation)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: conversation.agent.last_exit)
        assert "warning" not in str(conversation.agent.last_exit)


@pytest.mark.parametrize(
    ("code", "number", "outside"),
    [
        (0, None, False),
        (1, None, False),
        (127, None, False),
        (128, None, False),
        (134, None, False),  # SIGABRT below a shell
        (137, None, True),
        (143, None, True),
        (130, None, True),
        (None, signal.SIGKILL, True),
        (None, signal.SIGTERM, True),
        (None, signal.SIGHUP, True),
        (None, signal.SIGSEGV, False),
        (None, signal.SIGABRT, False),
    ],
)
def test_who_ended_it(code: int | None, number: int | None, outside: bool) -> None:
    assert ExitStatus(code=code, signal=number, uptime=1.0).from_outside is outside


# -- an answer without a word


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("vocabulary", list(Vocabulary))
@pytest.mark.parametrize("said", ["", "!think hm", "!text \n!text  ", "!tool", "!commands"])
async def test_an_answer_without_a_word_says_so_with_the_last_words(
    tmp_path: Path, vocabulary: Vocabulary, said: str
) -> None:
    """As Kimi CLI and Pi end a turn whose call of the model failed."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary)
        await turn(conversation, "!complain before\n!text hello")
        found = await turn(
            conversation, f"{said}\n!complain 401 from the model\n!raw giving up\n!stop end_turn"
        )
        assert answer(found).splitlines() == [f"{UNSAID} Its last words:", "401 from the model", "giving up"]
        observed = [e for e in found if (e.get("observation") or {}).get("kind") == "FinishObservation"]
        assert observed[0]["observation"]["content"][0]["text"] == answer(found)
        assert states(found, "turn")[1]["answered"] is False
        assert conversation.record.now.execution_status == "finished"
        assert await conversation.final_response() == answer(found)


async def test_words_of_before_are_told_as_that(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        assert (
            answer(await turn(conversation, "!stop end_turn")) == f"{UNSAID} It wrote nothing else, either."
        )
        await turn(conversation, "!complain before\n!text hello")
        told = answer(await turn(conversation, "!stop end_turn"))
        assert told.splitlines() == [
            f"{UNSAID} It wrote nothing else in this turn. Its last words before:",
            "before",
        ]


async def test_an_answer_that_was_cut_short_before_its_first_word(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        told = answer(await turn(conversation, "!think hm\n!stop max_tokens"))
        assert told.startswith(f"{UNSAID} Cut short: the model's output token limit was reached.")


async def test_words_before_a_tool_call_are_an_answer(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!text Done.\n!tool\n!complain noise\n!stop end_turn")
        assert answer(found) == ""
        assert states(found, "turn")[1]["answered"] is True


@pytest.mark.parametrize("reason", ["refusal", "max_turn_requests"])
async def test_what_is_no_answer_needs_no_words(tmp_path: Path, reason: str) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, f"!stop {reason}")
        assert UNSAID not in str(found)


async def test_the_words_in_an_answer_are_masked_and_bounded(tmp_path: Path) -> None:
    secret = "s3cret-t0ken-of-the-test"
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": secret}) as harness:
        conversation = await harness.start()
        # The second line is cut where it has the secret.
        cut = "x" * (4096 - 8) + secret
        lines = [f"key {secret}", cut, *(f"line {number} " + "y" * 5000 for number in range(5))]
        complaints = "\n".join(f"!complain {line}" for line in lines)
        told = answer(await turn(conversation, f"{complaints}\n!raw out {secret}\n!stop end_turn"))
        assert "<secret-hidden>" in told
        assert secret[:8] not in told
        assert len(told) < 9 * 4200
        flood = await turn(conversation, "!noise 100\n!stderr 100\n!stop end_turn")
        assert len(answer(flood).splitlines()) == 1 + 2 * TAIL_LINES


async def test_what_ostler_says_for_the_agent_is_not_in_its_transcript(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=resume,load")
        await turn(conversation, "!think hm\n!complain 401\n!stop end_turn")
        await turn(conversation, "!crash 1")
        await turn(conversation, "what now")
        prompt = harness.log.prompts()[-1]
        assert "!complain 401" in prompt  # what the person said
        assert UNSAID not in prompt


async def test_words_that_come_with_the_answer_are_there(tmp_path: Path) -> None:
    """The two pipes are read by two tasks: the answer may be handled first."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        for number in range(20):
            told = answer(await turn(conversation, f"!complain line {number}\n!stop end_turn"))
            assert told.endswith(f"\nline {number}")


# -- silence


@pytest.mark.guarantee(name="nothing-hangs")
async def test_what_is_known_of_a_silence_is_told_to_programs_and_to_people(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """As of seven agents that retry for ever when the model answers 500."""
    secret = "s3cret-t0ken-of-the-test"
    async with open_harness(tmp_path, clock=mock_clock, secrets={"DEMO_TOKEN": secret}) as harness:
        conversation = await harness.start()
        line = f"500 from the model with {secret}; trying again"
        message = await conversation.send(say(f"!text a\n!retry 3600 {line}"), run=True)
        await speaking(conversation)
        run = conversation.agent.ready
        assert run is not None
        await until(lambda: run.stderr_tail.lines(), "the complaint")

        async def told(count: int) -> list[Any]:
            found = await seen(conversation, lambda found: len(states(found, "agent_silent")) >= count)
            return states(found, "agent_silent")

        mock_clock.jump(59)
        await trio.testing.wait_all_tasks_blocked()
        assert await told(0) == []
        mock_clock.jump(1)
        (first,) = await told(1)
        assert first == {
            "silent_seconds": 60.0,
            "ends_in_seconds": 1740.0,
            "message_id": message,
            "updates": 1,
            "last_line": "500 from the model with <secret-hidden>; trying again",
            "last_line_seconds_ago": 60.0,
            "failed_call": None,
        }
        mock_clock.jump(60)
        assert [each["silent_seconds"] for each in await told(2)] == [60.0, 120.0]
        found = await events(conversation)
        notes = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
        assert len(notes) == 2
        text = notes[0]["llm_message"]["content"][0]["text"]
        assert "said nothing for 60 s, since its last word" in text
        assert "500 from the model with <secret-hidden>; trying again" in text
        await conversation.interrupt()
        await settled(conversation)


def frame(method: str, **params: Any) -> str:
    """The directive that sends this notification of the session."""
    told = {"jsonrpc": "2.0", "method": method, "params": {"sessionId": "SESSION", **params}}
    return "!bytes " + base64.b64encode(json.dumps(told).encode()).decode()


def codex(number: int) -> str:
    error = {
        "message": f"Reconnecting... {number}/5",
        "additionalDetails": "failed to lookup address information",
        "willRetry": True,
    }
    return frame(
        "session/update",
        update={"sessionUpdate": "session_info_update", "_meta": {"codex": {"error": error}}},
    )


def claude(number: int) -> str:
    message = {"subtype": "api_retry", "attempt": number, "max_retries": 10, "retry_delay_ms": 95_000}
    return frame("_claude/sdkMessage", message={**message, "error_status": 529, "error": "overloaded"})


def vibe(number: int) -> str:
    """It reports its usage, too, which is no work."""
    update = frame("session/update", update={"sessionUpdate": "usage_update", "used": number, "size": 9})
    return update + "\n" + frame("_session/retrying", category="server_error", detail="HTTP 500")


def thinking(number: int) -> str:
    """A program that writes into its model's thoughts."""
    content = {"type": "text", "text": f"Attempt {number}: transient failure; trying again"}
    return frame("session/update", update={"sessionUpdate": "agent_thought_chunk", "content": content})


def status(number: int) -> str:
    """An update that the protocol does not have."""
    said = {"type": "retry", "attempt": number, "message": "Provider is overloaded"}
    return frame("session/update", update={"sessionUpdate": "session_status", "status": said})


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize(
    ("say_it", "words"),
    [
        (thinking, "failed 4 times, last 60 s ago: Attempt 4: transient failure; trying again"),
        (status, "failed 4 times, last 60 s ago: Provider is overloaded."),
        (
            codex,
            "failed 4 times, last 60 s ago: Reconnecting... 4/5: failed to lookup address information.",
        ),
        (claude, "overloaded (HTTP 529) (attempt 4 of 10). It tries again in 35 s."),
        (vibe, "failed 4 times, last 60 s ago: server_error: HTTP 500."),
    ],
)
async def test_what_an_agent_says_of_failed_calls_is_told(
    tmp_path: Path, mock_clock: MockClock, say_it: Any, words: str
) -> None:
    """Failures are no signs of life: with them, the silence is told of as without them."""
    async with open_harness(tmp_path, clock=mock_clock) as harness:
        conversation = await harness.start()
        failures = "\n!sleep 0.2\n".join(say_it(number) for number in range(1, 5))
        message = await conversation.send(
            say(f"{say_it(9)}\n!text a\n{failures}\n!retry 9999 [mcp] a line"), run=True
        )

        def failed(found: list[Any]) -> list[Any]:
            return [(each["message_id"], each["times"]) for each in states(found, "model_call_failed")]

        # The text between them was work.
        known = [(message, times) for times in (1, 1, 2, 3, 4)]
        await seen(conversation, lambda found: failed(found) == known)
        mock_clock.jump(30)
        usage = {"sessionUpdate": "usage_update", "used": 5, "size": 9}
        handler = conversation.runner._handler
        handler.notification(
            "session/update", {"sessionId": conversation.record.now.session_id, "update": usage}
        )
        handler.flush()
        mock_clock.jump(30)
        found = await seen(conversation, lambda found: bool(states(found, "agent_silent")))
        assert states(found, "agent_silent")[0]["failed_call"]["times"] == 4
        (note,) = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
        assert words in note["llm_message"]["content"][0]["text"]
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1000)
        error = one(
            await seen(conversation, lambda found: "ConversationErrorEvent" in kinds(found)),
            "ConversationErrorEvent",
        )
        assert "Ostler ended its turn. Its call of the model failed 4 times, last " in error["detail"]
        await settled(conversation)


async def test_an_agent_cannot_fill_the_log_with_failures(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "\n".join([vibe(1)] * 200))
        times = [each["times"] for each in states(found, "model_call_failed")]
        assert times == [*range(1, 9), 16, 32, 64, 128]


async def test_an_agent_that_is_silent_at_every_step_fills_no_conversation(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Programs are told each time; people only when it is longer than what they were told before."""
    async with open_harness(tmp_path, clock=mock_clock) as harness:
        conversation = await harness.start()
        await conversation.send(say("!text a\n!hang"), run=True)
        await speaking(conversation)
        for _ in range(5):
            mock_clock.jump(61)
            await trio.testing.wait_all_tasks_blocked()
            conversation.runner._handler._silence.touch()
        found = await events(conversation)
        assert len(states(found, "agent_silent")) == 5
        assert len([e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]) == 1
        await conversation.interrupt()
        await settled(conversation)
