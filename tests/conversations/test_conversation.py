"""Conversations with a real agent process: what is recorded, what is prompted, what is left running."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).resolve().parent))

from house import PATIENCE_SECONDS, answer, events, kinds, one, open_house, say, settled, states, turn, until

from supervisor.conversations.agent import AgentRun
from supervisor.conversations.deadlines import Deadlines
from supervisor.conversations.errors import AlreadyRunning, UnknownConversation
from supervisor.conversations.masking import masker
from supervisor.conversations.start import StartRequest
from supervisor.conversations.translate import Translator
from supervisor.events import Vocabulary
from supervisor.settings import AgentSettings

ALWAYS = {"kind": "AlwaysConfirm"}


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_first_turn_from_message_to_answer(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        found = await turn(conversation, "hello there")
        assert kinds(found) == ["MessageEvent", "SystemPromptEvent", "ActionEvent", "ObservationEvent"]
        assert answer(found) == "echo: hello there "
        assert states(found, "execution_status") == ["running", "finished"]
        assert found[0]["llm_message"]["content"][0]["text"] == "hello there"
        assert states(found, "last_user_message_id") == [found[0]["id"]]
        assert conversation.record.title == "hello there"
        assert house.log.prompts() == ["hello there"]
        pid = conversation.runner.pid
        again = await turn(conversation, "and again")
        assert answer(again) == "echo: and again "
        assert conversation.runner.pid == pid
        assert states(again, "execution_status")[0] == "idle"  # a message after the end of a run
    assert pid is not None
    assert not alive(pid)


async def test_the_tree_of_events_and_their_times(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
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
    async with open_house(tmp_path) as house:
        conversation = await house.start(vocabulary=Vocabulary.CORE)
        found = await turn(conversation, "!rich")
        assert "ACPToolCallEvent" not in kinds(found)
        assert "ActionEvent" in kinds(found)
        for event in found:
            assert "parent_id" not in event
            assert "extended_content" not in event or event["kind"] == "MessageEvent"


async def test_messages_are_prompted_in_order_and_once(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!slow 20 20"), run=True)
        await until(lambda: conversation.runner.pid)
        await conversation.send(say("second"), run=True)
        await conversation.send(say("third"), run=False)
        assert await settled(conversation) == "finished"
        assert house.log.prompts() == ["!slow 20 20", "second", "third"]
        found = await events(conversation)
        assert states(found, "execution_status") == ["running", "finished"]
        assert kinds(found).count("ObservationEvent") == 3


async def test_a_message_without_run_waits(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("later"), run=False)
        await trio.testing.wait_all_tasks_blocked()
        assert house.log.prompts() == []
        assert conversation.record.execution_status == "idle"
        await conversation.run()
        assert conversation.record.execution_status == "running"
        assert await settled(conversation) == "finished"
        assert house.log.prompts() == ["later"]


async def test_run_while_running_is_refused(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!slow 50 20"), run=True)
        with pytest.raises(AlreadyRunning):
            await conversation.run()
        await conversation.interrupt()


async def test_a_clean_interrupt_keeps_process_session_and_words(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await turn(conversation, "warm up")
        pid = conversation.runner.pid
        await conversation.send(say("!slow 500 20"), run=True)
        await until(lambda: conversation.runner._translator._segment)
        await conversation.interrupt()
        assert conversation.record.execution_status == "paused"
        found = (await events(conversation))[-10:]
        partial = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "agent"]
        assert len(partial) == 1
        assert partial[0]["llm_message"]["content"][0]["text"]
        assert kinds(found)[-1] == "InterruptEvent"
        assert states(found, "agent_state")[-1]["stop_reason"] == "cancelled"
        after = await turn(conversation, "next")
        assert answer(after) == "echo: next "
        assert conversation.runner.pid == pid
        assert house.log.prompts() == ["warm up", "!slow 500 20", "next"]


async def test_core_calls_an_interrupt_a_pause(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(vocabulary=Vocabulary.CORE)
        await conversation.send(say("!hang"), run=True)
        await until(lambda: house.log.prompts())
        await conversation.interrupt()
        assert kinds(await events(conversation))[-1] == "PauseEvent"


async def test_an_agent_that_ignores_a_cancel_loses_its_process_and_nothing_else(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("cancel=ignore", "without=close")
        await turn(conversation, "remember me")
        pid = conversation.runner.pid
        await conversation.send(say("!slow 2000 20"), run=True)
        await until(lambda: conversation.runner._translator._segment)
        await conversation.interrupt()  # control returns though nothing has settled
        assert conversation.record.execution_status == "paused"
        await until(lambda: conversation.runner.pid != pid, "the end of the process")
        found = await turn(conversation, "!remember")
        assert "remember me" in answer(found)
        assert conversation.runner.pid != pid
        assert kinds(await events(conversation)).count("InterruptEvent") == 1


async def test_an_agent_that_ignores_a_cancel_but_closes_its_session_keeps_its_process(
    tmp_path: Path,
) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("cancel=ignore")
        await turn(conversation, "remember me")
        pid = conversation.runner.pid
        await conversation.send(say("!slow 2000 20"), run=True)
        await until(lambda: conversation.runner._translator._segment)
        await conversation.interrupt()
        await until(lambda: not conversation.runner.busy, "the end of the turn")
        assert house.log.received("session/close")
        assert "remember me" in answer(await turn(conversation, "!remember"))
        assert conversation.runner.pid == pid
        assert conversation.record.agent_state["memory"] == "resumed"


async def test_a_message_waits_until_a_closed_session_is_open_again(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("cancel=ignore")
        await turn(conversation, "remember me")
        keeper = conversation.runner.keeper
        pid, reopen, gate = conversation.runner.pid, keeper.reopen, trio.Event()

        async def reopen_later(run: AgentRun) -> bool:
            await gate.wait()
            return await reopen(run)

        keeper.reopen = reopen_later  # type: ignore[method-assign]
        await conversation.send(say("!slow 2000 20"), run=True)
        await until(lambda: conversation.runner._translator._segment)
        await conversation.interrupt()
        await until(lambda: not conversation.runner.busy, "the end of the turn")
        before = conversation.log.last_seq
        await conversation.send(say("!remember"), run=True)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert house.log.prompts() == ["remember me", "!slow 2000 20"]
        gate.set()
        await settled(conversation)
        assert "remember me" in answer((await events(conversation))[before + 1 :])
        assert conversation.runner.pid == pid
        assert len(house.log.received("initialize")) == 1


async def test_interrupting_a_start_keeps_the_message(tmp_path: Path) -> None:
    async with open_house(tmp_path, deadlines=Deadlines()) as house:
        conversation = await house.start("hang=init")
        await conversation.send(say("hello"), run=True)
        await until(lambda: house.log.received("initialize"))
        await conversation.interrupt()
        assert conversation.record.execution_status == "paused"
        assert house.log.prompts() == []
        assert [item.message for item in conversation.inbox] == [say("hello")]


async def test_a_crash_in_a_turn_is_told_with_its_last_words_and_the_next_message_goes_on(
    tmp_path: Path,
) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await turn(conversation, "my name is Bo")
        found = await turn(conversation, "!text half\n!crash 3")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == "ACPAgentExited"
        assert "exited with code 3" in error["detail"]
        assert error["classification"]["retryable"] is True
        assert conversation.record.execution_status == "error"
        partial = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "agent"]
        assert [e["llm_message"]["content"][0]["text"] for e in partial] == ["half"]
        after = await turn(conversation, "!remember")
        assert "my name is Bo" in answer(after)
        assert states(after, "agent_state")[-1]["memory"] in {"resumed", "loaded"}
        assert len(house.log.pids()) == 2


async def test_what_an_agent_replays_is_not_recorded_again(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("without=resume")
        await turn(conversation, "first")
        await turn(conversation, "!crash SIGKILL")
        found = await turn(conversation, "third")
        assert states(found, "agent_state")[-1]["memory"] == "loaded"
        assert kinds(found) == ["MessageEvent", "ActionEvent", "ObservationEvent"]


async def test_lost_memory_is_said_and_made_up_for(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("without=resume,load")
        await turn(conversation, "the word is tulip")
        await turn(conversation, "!crash 1")
        found = await turn(conversation, "what was it")
        notice = next(e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment")
        assert "could not be restored" in notice["llm_message"]["content"][0]["text"]
        assert states(found, "agent_state")[-1]["memory"] == "lost"
        prompt = house.log.prompts()[-1]
        assert "the word is tulip" in prompt
        assert prompt.count("what was it") == 1


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("crash=start:7", "ACPInitError", "exited with code 7"),
        ("crash=new:SIGKILL", "ACPInitError", "SIGKILL"),
        ("error=new:-32603:no luck", "ACPInitError", "no luck"),
        ("protocol=2", "ACPInitError", "version 2"),
    ],
)
async def test_starts_that_fail_are_reported_and_keep_the_message(
    tmp_path: Path, mode: str, code: str, words: str
) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(mode)
        found = await turn(conversation, "hello")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == code
        assert words in error["detail"]
        assert conversation.record.execution_status == "error"
        assert len(conversation.inbox) == 1


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        agent = house.agent()
        request = StartRequest(
            working_dir=str(tmp_path / "w"),
            agent=type(agent)(acp_server="custom", acp_command=("/no/such/agent",)),
        )
        conversation, _ = await house.supervisor.create(request)
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["code"] == "ACPSpawnError"
        assert "/no/such/agent" in error["detail"]


async def test_a_slow_start_ends_at_its_deadline(tmp_path: Path) -> None:
    async with open_house(tmp_path, deadlines=Deadlines(initialize=0.2)) as house:
        conversation = await house.start("hang=init")
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["code"] == "ACPStartupTimeout"
        assert "initialize" in error["detail"]


@pytest.mark.parametrize("mode", ["key", "prompt-key"])
async def test_missing_credentials_are_named_and_the_message_goes_on_once_they_are_there(
    tmp_path: Path, mode: str
) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(f"{mode}=DEMO_KEY", "auth=login-here")
        found = await turn(conversation, "hello")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired"
        assert "login-here" in error["detail"]
        assert error["classification"] == {"kind": "auth", "retryable": False, "user_action": "settings"}
        house.secrets["DEMO_KEY"] = "k"
        before = len(house.log.prompts())
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert house.log.prompts()[before:] == ["hello"]
        found = await events(conversation)
        assert answer(found) == "echo: hello "
        assert not [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]


async def test_permissions_are_given_once_without_a_person(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("options=allow_always,reject_once,allow_once")
        found = await turn(conversation, "!perm")
        assert kinds(found).count("ACPToolCallEvent") == 2
        assert "allow" in answer(found)
        outcome = [r["message"]["result"] for r in house.log.records("received") if "result" in r["message"]]
        assert {"outcome": {"outcome": "selected", "optionId": "opt-allow_once"}} in outcome


async def test_a_person_is_asked_and_accepts(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(confirmation_policy=ALWAYS)
        await conversation.send(say("!write made.txt content"), run=True)
        await until(lambda: conversation.record.execution_status == "waiting_for_confirmation")
        found = await events(conversation)
        action = found[[e["kind"] for e in found].index("ActionEvent")]
        assert action["action"]["kind"] == "MCPToolAction"
        assert kinds(found)[-1] == "ActionEvent"
        assert not (tmp_path / "workspace" / "made.txt").exists()
        await conversation.run()  # what the Python client does to accept
        assert await settled(conversation) == "finished"
        assert (tmp_path / "workspace" / "made.txt").read_text().strip() == "content"
        observation = next(e for e in await events(conversation) if e.get("action_id") == action["id"])
        assert observation["kind"] == "ObservationEvent"


async def test_a_person_is_asked_and_rejects(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(confirmation_policy=ALWAYS)
        await conversation.send(say("!write made.txt content"), run=True)
        await until(lambda: conversation.record.execution_status == "waiting_for_confirmation")
        await conversation.respond(False, "better not")
        await settled(conversation)
        found = await events(conversation)
        rejection = one(found, "UserRejectObservation")
        assert rejection["rejection_reason"] == "better not"
        assert rejection["action_id"] == next(e["id"] for e in found if e["kind"] == "ActionEvent")
        assert not (tmp_path / "workspace" / "made.txt").exists()


async def test_an_interrupt_answers_what_is_asked(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(confirmation_policy=ALWAYS)
        await conversation.send(say("!perms 3"), run=True)
        await until(lambda: len(conversation.runner._confirmations._pending) == 3)
        await conversation.interrupt()
        assert conversation.record.execution_status == "paused"
        outcomes = [r["message"]["result"] for r in house.log.records("received") if "result" in r["message"]]
        assert outcomes == [{"outcome": {"outcome": "cancelled"}}] * 3
        found = await events(conversation)
        assert kinds(found).count("ActionEvent") == 3
        assert kinds(found).count("AgentErrorEvent") == 3


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("end_turn", "finished", None),
        ("max_tokens", "finished", None),
        ("refusal", "error", "UsagePolicyRefusal"),
        ("max_turn_requests", "error", "MaxIterationsReached"),
        ("cancelled", "idle", None),
    ],
)
async def test_stop_reasons_are_told_apart(
    tmp_path: Path, reason: str, status: str, code: str | None
) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        found = await turn(conversation, f"!text some words\n!stop {reason}")
        assert conversation.record.execution_status == status
        assert states(found, "agent_state")[-1]["stop_reason"] == reason
        errors = [e["code"] for e in found if e["kind"] == "ConversationErrorEvent"]
        assert errors == ([code] if code else [])
        assert "some words" in str(found)


async def test_updates_after_the_end_of_a_turn_are_kept(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        found = await turn(conversation, "!text answer\n!after 3")
        assert answer(found) == "answer"

        async def late() -> list[dict[str, Any]]:
            return [
                e
                for e in await events(conversation)
                if e["kind"] == "MessageEvent" and e["source"] == "agent"
            ]

        with trio.fail_after(10):
            while not await late():
                await trio.sleep(0.02)
        assert len(await late()) == 1


async def test_pause_lets_the_turn_end_and_takes_no_more(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!slow 20 20"), run=True)
        await conversation.send(say("second"), run=True)
        await until(lambda: house.log.prompts())
        await conversation.pause()
        assert conversation.record.execution_status == "paused"
        await until(lambda: not conversation.runner.busy)
        assert house.log.prompts() == ["!slow 20 20"]
        assert conversation.record.execution_status == "paused"
        assert "PauseEvent" in kinds(await events(conversation))
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert house.log.prompts() == ["!slow 20 20", "second"]


async def test_run_after_an_interrupt_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!slow 500 20"), run=True)
        await until(lambda: conversation.runner._translator._segment)
        await conversation.interrupt()
        await conversation.run()
        assert await settled(conversation) == "finished"
        prompts = house.log.prompts()
        assert prompts[0] == "!slow 500 20"
        assert "Continue where you left off" in prompts[1]
        assert len(prompts) == 2


async def test_silence_ends_a_turn_and_waiting_for_a_person_does_not(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(settings={"acp_prompt_timeout": 0.4}, confirmation_policy=ALWAYS)
        error = one(await turn(conversation, "!text a\n!hang"), "ConversationErrorEvent")
        assert "silent for 0.4 s" in error["detail"]
        await conversation.send(say("!write a.txt b"), run=True)
        await until(lambda: conversation.record.execution_status == "waiting_for_confirmation")
        await trio.sleep(0.6)
        assert conversation.record.execution_status == "waiting_for_confirmation"
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"


async def test_a_server_that_died_is_told_and_what_was_queued_is_kept(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!opentool\n!hang"), run=True)
        await conversation.send(say("queued"), run=False)
        await until(lambda: conversation.runner._translator._cards)
        await conversation.log.flushed()
        # What a server leaves that is killed now.
        (tmp_path / "dead").mkdir()
        with (
            contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as source,
            contextlib.closing(sqlite3.connect(tmp_path / "dead" / "journal.sqlite3")) as copy,
        ):
            source.backup(copy)
        conversation_id = conversation.id
    async with open_house(tmp_path / "dead") as house:
        conversation = await house.supervisor.get(conversation_id)
        found = await events(conversation)
        assert conversation.record.execution_status == "error"
        assert one(found, "ConversationErrorEvent")["code"] == "ServerRestarted"
        calls = [e for e in found if e["kind"] == "ACPToolCallEvent"]
        assert [call["status"] for call in calls] == ["in_progress", "failed"]
        assert [item.message for item in conversation.inbox] == [say("queued")]


async def test_an_orderly_end_pauses_what_runs(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!slow 500 20"), run=True)
        await until(lambda: conversation.runner._translator._segment)
        conversation_id = conversation.id
    async with open_house(tmp_path) as house:
        conversation = await house.supervisor.get(conversation_id)
        assert conversation.record.execution_status == "paused"
        assert kinds(await events(conversation))[-1] == "InterruptEvent"
        found = await turn(conversation, "!remember")
        assert "!slow 500 20" in answer(found)


async def test_create_is_idempotent_by_id(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        wanted = "11111111-2222-3333-4444-555555555555"
        first = await house.start(conversation_id=wanted)
        request = StartRequest(
            working_dir="/elsewhere", conversation_id=wanted, agent=house.agent(), initial_message=say("no")
        )
        second, created = await house.supervisor.create(request)
        assert second is first
        assert not created
        assert house.log.prompts() == []


async def test_delete_stops_the_agent_and_forgets(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await conversation.send(say("!hang"), run=True)
        pid = await until(lambda: conversation.runner.pid)
        await house.supervisor.delete(conversation.id)
        assert not alive(pid)
        with pytest.raises(UnknownConversation):
            await house.supervisor.get(conversation.id)


async def test_an_agent_sees_nothing_of_the_server(tmp_path: Path) -> None:
    async with open_house(tmp_path, secrets={"DEMO_TOKEN": "t0ken"}) as house:
        conversation = await house.start(secrets={"OWN_TOKEN": "0wn"})
        assert "0wn" not in repr(conversation.record.secrets.get("OWN_TOKEN", "")).replace("sealed:", "")[:0]
        await turn(conversation, "hello")
        pid = conversation.runner.pid
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        names = {item.partition("=")[0] for item in environ}
        assert "SECRET_OF_THE_SERVER" not in names
        assert "DEMO_TOKEN=t0ken" in environ
        assert "OWN_TOKEN=0wn" in environ
        found = await turn(conversation, "!cwd")
        assert answer(found).count(str(tmp_path / "workspace")) >= 2


async def test_a_fault_in_one_conversation_reaches_no_other(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        broken, healthy = await house.start(), await house.start()
        await turn(healthy, "hello")

        class Faulty(Translator):
            def update(self, update: Any) -> Any:
                raise ZeroDivisionError("ours")

        broken.runner._translator = Faulty(core=False)
        await broken.send(say("boom"), run=True)
        await until(lambda: broken.record.execution_status == "error")
        assert one(await events(broken), "ConversationErrorEvent")["code"] == "InternalError"
        assert answer(await turn(healthy, "still here")) == "echo: still here "


@pytest.mark.parametrize(
    "modes", [("banner=3", "noise"), ("bom",), ("dribble",), ("bad-types",), ("null-load",)]
)
async def test_odd_agents_work(tmp_path: Path, modes: tuple[str, ...]) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start(*modes)
        assert answer(await turn(conversation, "héllo wörld")) == "echo: héllo wörld "


async def test_every_kind_of_nonsense_in_a_turn_is_survived(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
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
            assert conversation.record.execution_status == "finished", (line, found)


async def test_a_flood_arrives_whole_and_in_order(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        found = await turn(conversation, "!flood 5000")
        words = answer(found).split()
        assert len(words) == 5000
        assert words == sorted(words, key=lambda word: int("".join(c for c in word if c.isdigit())))


async def test_credentials_of_mcp_servers_are_sealed_and_forwarded(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        server = {"command": "/bin/cat", "args": ["-"], "env": {"TOKEN": "s3cret"}}
        conversation = await house.start(settings={"mcp_config": {"files": server}})
        assert "s3cret" not in conversation.record.dump().decode().replace("sealed:s3cret", "")
        assert "s3cret" not in str(conversation.info())
        assert b"s3cret" not in conversation.full_state()
        await turn(conversation, "hello")
        (params,) = [message["params"] for message in house.log.received("session/new")]
        assert params["mcpServers"] == [
            {
                "name": "files",
                "command": "/bin/cat",
                "args": ["-"],
                "env": [{"name": "TOKEN", "value": "s3cret"}],
            }
        ]


async def test_a_workspace_is_absolute_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_house(tmp_path) as house:
        request = StartRequest(working_dir="some/where", agent=house.agent())
        conversation, _ = await house.supervisor.create(request)
        assert conversation.record.working_dir == str(tmp_path / "some" / "where")
        await turn(conversation, "hello")
        assert (tmp_path / "some" / "where").is_dir()


async def test_the_tree_goes_on_where_it_was_after_a_start_of_the_server(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        found = await turn(conversation, "!tool")
        conversation_id = conversation.id
    async with open_house(tmp_path) as house:
        conversation = await house.supervisor.get(conversation_id)
        leaf = [e["id"] for e in found if e["kind"] != "ConversationStateUpdateEvent"][-1]
        assert conversation.record.leaf_event_id == leaf
        after = await turn(conversation, "hello")
        message = next(e for e in after if e["kind"] == "MessageEvent")
        assert message["parent_id"] == leaf


async def test_late_words_are_not_the_beginning_of_the_next_answer(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start()
        await turn(conversation, "!text answer\n!after 2")
        await until(lambda: conversation.runner._translator._segment)
        found = await turn(conversation, "next")
        assert answer(found) == "echo: next "
        late = one(await events(conversation), "MessageEvent", source="agent")
        assert late["llm_message"]["content"][0]["text"]


async def test_an_agent_that_dies_over_its_memory_gets_a_new_session(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        conversation = await house.start("without=resume", "crash=load:1")
        await turn(conversation, "the word is tulip")
        await turn(conversation, "!crash 1")
        await until(lambda: conversation.record.agent_state.get("memory") == "lost")
        assert len(house.log.received("session/load")) == 2
        await turn(conversation, "and now?")
        assert "the word is tulip" in house.log.prompts()[-1]


async def test_a_turn_may_end_while_the_server_drains(tmp_path: Path) -> None:
    async with open_house(tmp_path, drain_seconds=PATIENCE_SECONDS) as house:
        conversation = await house.start()
        await conversation.send(say("!slow 10 20"), run=True)
        await until(lambda: house.log.prompts())
        conversation_id = conversation.id
    async with open_house(tmp_path) as house:
        conversation = await house.supervisor.get(conversation_id)
        assert conversation.record.execution_status == "finished"


async def test_what_operators_and_clients_read_of_an_agent_holds_no_secret(tmp_path: Path) -> None:
    async with open_house(tmp_path, secrets={"DEMO_TOKEN": 'quote"d-t0ken'}) as house:
        server = {"command": "/bin/cat", "env": {"TOKEN": "mcp-s3cret"}}
        conversation = await house.start("stderr=1", settings={"mcp_config": {"files": server}})
        await turn(conversation, '!text quote"d-t0ken mcp-s3cret')
        frames = str(await house.supervisor.trace(conversation.id))
        assert "<secret-hidden>" in frames
        for secret in ("d-t0ken", "mcp-s3cret"):
            assert secret not in frames


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        (["longsecret"], "a longsecret b longsecret", "a <secret-hidden> b <secret-hidden>"),
        (['with"quote'], 'x with\\"quote y', "x <secret-hidden> y"),
        (["short"], "short", "short"),
        (["longsecret", "longsecretlonger"], "longsecretlonger", "<secret-hidden>"),
        ([], "anything", "anything"),
    ],
)
def test_masking(secrets: list[str], text: str, masked: str) -> None:
    assert masker(secrets)(text) == masked


async def test_what_an_agent_keeps_goes_with_its_conversation(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        demo = AgentSettings(acp_server="demo", acp_command=("python", "-m", "supervisor.agents.demo"))
        request = StartRequest(working_dir=str(tmp_path / "w"), agent=demo)
        conversation, _ = await house.supervisor.create(request)
        assert "Ostler's demo agent" in answer(await turn(conversation, "hello"))
        kept = tmp_path / "data" / conversation.id
        assert list((kept / "demo").iterdir())
        assert not (tmp_path / ".ostler-demo").exists()
        await house.supervisor.delete(conversation.id)
        assert not kept.exists()
