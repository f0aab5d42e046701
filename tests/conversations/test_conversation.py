"""Conversations with a real agent process: what is recorded, what is prompted, what is left running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.state.errors import AlreadyRunning, UnknownConversation
from supervisor.conversations.state.start import StartRequest
from supervisor.events import Vocabulary
from tests.conversations.harness import (
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
from tests.support.processes import alive

ALWAYS = {"kind": "AlwaysConfirm"}


async def test_a_first_turn_from_message_to_answer(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello there")
        assert kinds(found) == ["MessageEvent", "SystemPromptEvent", "ActionEvent", "ObservationEvent"]
        assert answer(found) == "echo: hello there "
        assert states(found, "execution_status") == ["running", "finished"]
        assert found[0]["llm_message"]["content"][0]["text"] == "hello there"
        assert states(found, "last_user_message_id") == [found[0]["id"]]
        assert conversation.record.title == "hello there"
        assert harness.log.prompts() == ["hello there"]
        pid = ready_pid(conversation)
        again = await turn(conversation, "and again")
        assert answer(again) == "echo: and again "
        assert ready_pid(conversation) == pid
        assert states(again, "execution_status")[0] == "idle"  # a message after the end of a run
    assert pid is not None
    assert not alive(pid)


async def test_modules_of_tools_are_told_as_they_were_sent(tmp_path: Path) -> None:
    """Clients import them, to read the events of these tools."""
    modules = {"ring": "bells.ring"}
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(extra={"tool_module_qualnames": modules})
        assert conversation.info()["tool_module_qualnames"] == modules
        assert (await harness.start()).info()["tool_module_qualnames"] == {}
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(conversation.id)
        assert again.info()["tool_module_qualnames"] == modules
        assert modules in [each["tool_module_qualnames"] for each in await harness.listed()]


async def test_the_tree_of_events_and_their_times(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!rich")
        leaf = None
        for event in found:
            assert event.get("parent_id") == leaf
            if event["kind"] != "ConversationStateUpdateEvent":
                leaf = event["id"]
        times = [event["timestamp"] for event in found]
        assert times == sorted(times)
        assert len(set(times)) == len(times)
        assert len({event["id"] for event in found}) == len(found)


async def test_core_has_the_interface_alone(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=Vocabulary.CORE)
        found = await turn(conversation, "!rich")
        assert "ACPToolCallEvent" not in kinds(found)
        assert "ActionEvent" in kinds(found)
        for event in found:
            assert "parent_id" not in event
            assert "extended_content" not in event or event["kind"] == "MessageEvent"


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_messages_are_prompted_in_order_and_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 20 20"), run=True)
        await until(lambda: ready_pid(conversation))
        await conversation.send(say("second"), run=True)
        await conversation.send(say("third"), run=False)
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["!slow 20 20", "second", "third"]
        found = await events(conversation)
        assert states(found, "execution_status") == ["running", "finished"]
        assert kinds(found).count("ObservationEvent") == 3


async def test_a_message_without_run_waits(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("later"), run=False)
        await trio.testing.wait_all_tasks_blocked()
        assert harness.log.prompts() == []
        assert conversation.record.now.execution_status == "idle"
        await conversation.run()
        assert conversation.record.now.execution_status == "running"
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["later"]


async def test_run_while_running_is_refused(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 50 20"), run=True)
        with pytest.raises(AlreadyRunning):
            await conversation.run()
        await conversation.interrupt()


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("end_turn", "finished", None),
        ("max_tokens", "finished", None),
        ("refusal", "error", "UsagePolicyRefusal"),
        ("max_turn_requests", "error", "MaxIterationsReached"),
        ("cancelled", "finished", None),
    ],
)
async def test_stop_reasons_are_told_apart(
    tmp_path: Path, reason: str, status: str, code: str | None
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, f"!text some words\n!stop {reason}")
        assert conversation.record.now.execution_status == status
        assert states(found, "agent_state")[-1]["stop_reason"] == reason
        errors = [e["code"] for e in found if e["kind"] == "ConversationErrorEvent"]
        assert errors == ([code] if code else [])
        assert "some words" in str(found)


async def test_updates_after_the_end_of_a_turn_are_kept(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!text answer\n!after 3")
        assert answer(found) == "answer"

        async def late() -> list[dict[str, Any]]:
            return [
                e
                for e in await events(conversation)
                if e["kind"] == "MessageEvent" and e["source"] == "agent"
            ]

        with trio.fail_after(30):
            while not await late():
                await trio.sleep(0.02)
        assert len(await late()) == 1


async def test_silence_ends_a_turn_and_waiting_for_a_person_does_not(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock) as harness:
        conversation = await harness.start(settings={"acp_prompt_timeout": 40.0}, confirmation_policy=ALWAYS)
        await conversation.send(say("!text a\n!hang"), run=True)
        await speaking(conversation)
        mock_clock.jump(40)
        assert await settled(conversation) == "error"
        error = one(await events(conversation), "ConversationErrorEvent")
        assert "silent for 40.0 s" in error["detail"]
        await conversation.send(say("!write a.txt b"), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        for _ in range(10):
            mock_clock.jump(40)
            await trio.testing.wait_all_tasks_blocked()
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"


async def test_create_is_idempotent_by_id(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        wanted = "11111111-2222-3333-4444-555555555555"
        first = await harness.start(conversation_id=wanted)
        request = StartRequest(
            working_dir="/elsewhere", conversation_id=wanted, agent=harness.agent(), initial_message=say("no")
        )
        second, created = await harness.supervisor.create(request)
        assert second is first
        assert not created
        assert harness.log.prompts() == []


async def test_delete_stops_the_agent_and_forgets(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!hang"), run=True)
        pid = await until(lambda: ready_pid(conversation))
        await harness.supervisor.delete(conversation.id)
        assert not alive(pid)
        with pytest.raises(UnknownConversation):
            await harness.supervisor.get(conversation.id)


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_fault_in_one_conversation_reaches_no_other(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        broken, healthy = await harness.start(), await harness.start()
        await turn(healthy, "hello")

        class Faulty(Translator):
            def update(self, update: Any) -> Any:
                raise ZeroDivisionError("ours")

        broken.runner._handler._translator = Faulty(core=False)
        await broken.send(say("boom"), run=True)
        await until(lambda: broken.record.now.execution_status == "error")
        assert one(await events(broken), "ConversationErrorEvent")["code"] == "InternalError"
        assert answer(await turn(healthy, "still here")) == "echo: still here "


@pytest.mark.parametrize(
    "modes", [("banner=3", "noise"), ("bom",), ("dribble",), ("bad-types",), ("null-load",)]
)
async def test_odd_agents_work(tmp_path: Path, modes: tuple[str, ...]) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*modes)
        assert answer(await turn(conversation, "héllo wörld")) == "echo: héllo wörld "


async def test_a_fault_in_recording_a_fault_reaches_no_other(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        broken, healthy = await harness.start(), await harness.start()
        await turn(healthy, "hello")
        await broken.send(say("!slow 20 20"), run=True)
        await speaking(broken)

        class Faulty:
            def __getattr__(self, name: str) -> Any:
                raise ZeroDivisionError("ours")

        broken.recorder.log = Faulty()  # type: ignore[assignment]
        await until(lambda: not broken.busy)
        assert answer(await turn(healthy, "still here")) == "echo: still here "


async def test_stop_reasons_that_agents_make_up_are_one_figure(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        for reason in ("made_up_1", "made_up_2", "end_turn"):
            await turn(conversation, f"!stop {reason}")
        assert harness.supervisor.figures().turns_total == {"other": 2, "end_turn": 1}


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_every_kind_of_nonsense_in_a_turn_is_survived(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        for line in (
            "!unknown",
            "!badtypes",
            "!noise 3",
            "!duptool",
            "!noid",
            "!strayupdate",
            "!elicit",
            "!junk 100000",
        ):
            found = await turn(conversation, line)
            assert conversation.record.now.execution_status == "finished", (line, found)


async def test_a_flood_arrives_whole_and_in_order(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!flood 5000")
        words = answer(found).split()
        assert len(words) == 5000
        assert words == sorted(words, key=lambda word: int("".join(c for c in word if c.isdigit())))


async def test_late_words_are_not_the_beginning_of_the_next_answer(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "!text answer\n!after 2")
        await speaking(conversation)
        found = await turn(conversation, "next")
        assert answer(found) == "echo: next "
        late = one(await events(conversation), "MessageEvent", source="agent")
        assert late["llm_message"]["content"][0]["text"]


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_what_operators_and_clients_read_of_an_agent_holds_no_secret(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": 'quote"d-t0ken'}) as harness:
        server = {"command": "/bin/cat", "env": {"TOKEN": "mcp-s3cret"}}
        conversation = await harness.start("stderr=1", settings={"mcp_config": {"files": server}})
        await turn(conversation, '!text quote"d-t0ken mcp-s3cret')
        frames = str(await harness.supervisor.trace(conversation.id))
        assert "<secret-hidden>" in frames
        for secret in ("d-t0ken", "mcp-s3cret"):
            assert secret not in frames
