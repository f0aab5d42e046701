"""An agent that tells its conversation in the interface's own events, as the built-in one does."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from supervisor.conversations.agent.lifecycle import sessions
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.built_in import requests
from supervisor.conversations.built_in.kind import BuiltIn
from supervisor.conversations.built_in.memory import MEMORY_DIR, move_memory
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.errors import AgentFailure, AlreadyRunning, NotAccepted, NotPossible
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.turns.hand_over import HandOver
from supervisor.events import MessageEvent, new_event_id
from supervisor.hooks.config import HookSource
from supervisor.journal.errors import JournalUnavailable
from supervisor.journal.journal import Journal
from supervisor.settings.profiles.llm_profiles import LlmProfileStore
from supervisor.settings.profiles.profiles import AgentProfileStore
from tests.conversations.harness import (
    Harness,
    events,
    kinds,
    one,
    open_harness,
    ready_pid,
    say,
    settled,
    states,
    turn,
    until,
)
from tests.conversations.telling import ALWAYS, DOCUMENT, KEY, handed, repeats, start, told
from tests.conversations.test_streamed_items import streamed


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_what_it_tells_is_in_the_journal_as_it_is(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        script = "!system s\n!act a ls\n!observe a one two\n!answer m Done, all of it."
        found = await turn(conversation, script)
        assert kinds(found) == [
            "MessageEvent",
            "SystemPromptEvent",
            "ActionEvent",
            "ObservationEvent",
            "MessageEvent",
        ]
        ids = [event["id"] for event in found if event["kind"] != "ConversationStateUpdateEvent"]
        assert ids[1:] == ["s", "a", "a-done", "m"]
        assert found[-1]["id"] != "m"  # states follow
        assert (
            one(found, "ActionEvent")["action"]
            == {"kind": "TerminalAction", "command": "ls"} | one(found, "ActionEvent")["action"]
        )
        assert conversation.record.now.execution_status == "finished"
        assert await conversation.final_response() == "Done, all of it."
        turns = states(found, "turn")
        assert (turns[-1]["answer_id"], turns[-1]["stop_reason"]) == ("m", "end_turn")
        # The parents of the tree are the events before.
        parents = [e.get("parent_id") for e in found if e["kind"] != "ConversationStateUpdateEvent"]
        assert parents[2:] == ["s", "a", "a-done"]
        # The prompt names the event that the agent is not to tell again.
        meta = harness.log.received("session/prompt")[0]["params"]["_meta"]["ostler"]
        assert meta["message_id"] == ids[0]
        assert meta["message"]["content"][0]["text"] == script


async def test_streamed_pieces_have_the_id_of_the_event_that_they_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told(tmp_path) as (_, conversation):
        frames = streamed(conversation, monkeypatch)
        script = '!answer m Hello there\n!tell stream {"type":"item_started","item_id":"x","attempt":2}\n'
        piece = '"attempt":2,"order":0,"kind":"text","content":"?"'
        script += '!tell stream {"type":"delta","item_id":"x",' + piece + "}\n"
        script += '!tell stream {"type":"item_aborted","item_id":"x","attempt":2,"reason":"retry"}'
        await turn(conversation, script)
        told_items = [f for f in frames if f["type"] in ("item_started", "delta", "item_aborted")]
        assert [(f["type"], f["item_id"], f["attempt"]) for f in told_items] == [
            ("item_started", "m", 0),
            ("delta", "m", 0),
            ("delta", "m", 0),
            ("item_started", "x", 2),
            ("delta", "x", 2),
            ("item_aborted", "x", 2),
        ]
        assert "".join(f.get("content", "") for f in told_items if f["item_id"] == "m") == "Hello there"


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_arguments_are_streamed_beside_each_other_until_their_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def piece(item: str, content: str, kind: str = "arguments") -> str:
        fields = {"type": "delta", "item_id": item, "attempt": 1, "order": 0, "kind": kind}
        call = {"tool_call_id": f"call-{item}", "tool_name": "terminal"} if kind == "arguments" else {}
        return f"!tell stream {json.dumps({**fields, 'content': content, **call})}\n"

    begun = '!tell stream {{"type":"item_started","item_id":"{}","attempt":1}}\n'
    async with told(tmp_path) as (_, conversation):
        frames = streamed(conversation, monkeypatch)
        script = begun.format("a") + piece("a", "I look.", "text") + piece("a", '{"command":')
        script += begun.format("b") + piece("b", '{"command":"p') + piece("a", ' "ls"}') + piece("b", 'wd"}')
        script += begun.format("c") + piece("c", "{}")
        script += "!act a ls\n!act b pwd\n!observe a one\n!observe b two\n!answer m Done."
        found = await turn(conversation, script)
        assert {"a", "b"} <= {event["id"] for event in found}
        items = {each: [f for f in frames if f.get("item_id") == each] for each in "abc"}
        assert [f["type"] for f in items["b"]] == ["item_started", "delta", "delta"]
        assert [f["type"] for f in items["c"]] == ["item_started", "delta", "item_aborted"]
        arguments = [f for f in items["a"] if f.get("kind") == "arguments"]
        assert "".join(f["content"] for f in arguments) == '{"command": "ls"}'
        assert {(f["tool_call_id"], f["tool_name"]) for f in arguments} == {("call-a", "terminal")}
        assert [f["content"] for f in items["a"] if f.get("kind") == "text"] == ["I look."]
        assert "tool_name" not in next(f for f in items["a"] if f.get("kind") == "text")
        assert frames.index(items["c"][-1]) > frames.index(items["b"][-1])


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_what_is_open_when_it_is_killed_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told(tmp_path) as (_, conversation):
        frames = streamed(conversation, monkeypatch)
        piece = '"attempt":1,"order":0,"kind":"text","content":"Hello"'
        script = "".join(
            f'!tell stream {{"type":"item_started","item_id":"{each}","attempt":1}}\n'
            f'!tell stream {{"type":"delta","item_id":"{each}",{piece}}}\n'
            for each in "ab"
        )
        await conversation.send(say(f"{script}!crash SIGKILL"), run=True)
        assert await settled(conversation) == "error"
        aborted = [(f["item_id"], f["reason"]) for f in frames if f["type"] == "item_aborted"]
        assert aborted == [("a", "failed"), ("b", "failed")]
        found = await turn(conversation, "!answer m Back")
        assert kinds(found)[-1] == "MessageEvent"


async def test_what_is_refused_is_logged_and_the_conversation_goes_on(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        refused = [
            "event []",
            'state {"key":"execution_status","value":"error"}',
            'state {"key":"stats","value":[]}',
            'stream {"type":"delta","item_id":"m","order":"0","kind":"text","content":"x"}',
            "unheard-of {}",
            'event {"sessionId":"another","event":{"kind":"PauseEvent","id":"p","source":"user"}}',
        ]
        script = "\n".join(f"!tell {each}" for each in refused if not each.startswith("event []"))
        found = await turn(conversation, script + "\n!answer m Yes")
        assert kinds(found) == ["MessageEvent", "MessageEvent"]
        assert states(found, "execution_status") == ["running", "finished"]


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_an_event_that_cannot_be_read_fails_the_turn_and_the_next_one_works(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        broken = '!tell event {"event":{"kind":"ActionEvent","id":"a","source":"agent"}}\n!hang'
        found = await turn(conversation, broken)
        assert one(found, "ConversationErrorEvent")["code"] == "AgentEventUnreadable"
        assert conversation.record.now.execution_status == "error"
        assert kinds(await turn(conversation, "!answer m2 Again")) == ["MessageEvent", "MessageEvent"]
        assert len(harness.log.pids()) == 2


@pytest.mark.guarantee(name="keys-and-secrets")
async def test_other_agents_cannot_tell_events(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("tells")
        found = await turn(conversation, "!answer m Forged\nplain")
        assert "Forged" not in json.dumps([e for e in found if e["source"] == "agent"])
        assert one(found, "ActionEvent")["action"]["message"].startswith("echo: plain")


async def test_plain_updates_of_it_are_not_told_a_second_time(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        found = await turn(conversation, "plain words\n!tool\n!think aloud\n!answer m Once")
        assert kinds(found) == ["MessageEvent", "MessageEvent"]


async def test_secrets_are_masked_in_what_it_tells(tmp_path: Path) -> None:
    async with told(tmp_path, secrets={"TOKEN": "hush-hush-0123456789"}) as (_, conversation):
        found = await turn(
            conversation, f"!act a echo {KEY}\n!observe a {KEY} hush-hush-0123456789\n!answer m {KEY}"
        )
        agents = json.dumps([event for event in found if event["source"] != "user"])
        assert KEY not in agents
        assert "hush-hush" not in agents


@pytest.mark.guarantee(name="keys-and-secrets")
async def test_keys_are_sealed_at_rest_and_reach_it_over_stdin_alone(tmp_path: Path) -> None:
    async with told(tmp_path, secrets={"TOKEN": "hush-hush-0123456789"}) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        stored = orjson.loads(conversation.record.dump())["agent"]
        assert stored["document"] is None
        assert stored["sealed"].startswith("gAAAA-sealed:")  # the tests' cipher shows what it seals
        own = harness.log.received("session/new")[0]["params"]["_meta"]["ostler"]
        assert own["agent"] == DOCUMENT["agent"]
        assert own["conversation_id"] == conversation.id
        assert own["secrets"]["TOKEN"] == "hush-hush-0123456789"
        assert own["persistence_dir"] == str(tmp_path / "data" / conversation.id / MEMORY_DIR)
        environment = harness.log.records("start")[0]["environment"]
        assert KEY not in json.dumps(environment)
        assert "hush-hush" not in json.dumps(environment)
        assert conversation.info()["agent"]["llm"] == {"model": "m", "api_key": "**********"}
        assert KEY not in json.dumps(conversation.info())
        assert KEY.encode() not in conversation.full_state()


async def test_it_is_told_the_secrets_that_its_client_passed(tmp_path: Path) -> None:
    """What is kept for all agents is no secret of this conversation, and its model hears nothing of it."""
    kept = {"KEPT": "kept-value-0123456789", "TOKEN": "another-value-0123456789"}
    async with open_harness(tmp_path, secrets=kept) as harness:
        conversation = await start(harness, secrets={"TOKEN": "hush-hush-0123456789"})
        found = await turn(conversation, f"!answer m It is {kept['KEPT']}")
        own = harness.log.received("session/new")[0]["params"]["_meta"]["ostler"]
        assert own["secrets"] == {"TOKEN": "hush-hush-0123456789"}
        assert kept["KEPT"] not in json.dumps([each for each in found if each["source"] != "user"])
        harness.secrets["KEPT"] = "another"
        assert list((await harness.supervisor.agent(conversation.id)).changed_secrets) == []


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_key_that_it_gets_while_it_runs_is_masked(tmp_path: Path) -> None:
    new = "sk-another-key-9876543210"
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        await conversation.changes.switch_llm({"model": "other", "api_key": new})
        await conversation.changes.set_security_analyzer(ANALYZER)
        await turn(conversation, f"!answer n It is {new} and {ANALYZER_KEY}")
        said = json.dumps([each for each in await events(conversation) if each["source"] != "user"])
        trace = str(await harness.supervisor.trace(conversation.id))
        assert "_ostler/configure" in trace
        assert [key for key in (KEY, new, ANALYZER_KEY) if key in said or key in trace] == []


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_key_that_it_gets_while_it_starts_is_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = "sk-another-key-9876543210"
    async with told(tmp_path) as (_, conversation):
        plan = conversation.context.launcher.plan

        async def late(*given: Any) -> Any:
            made = await plan(*given)
            await conversation.changes.switch_llm({"model": "other", "api_key": new})
            return made

        monkeypatch.setattr(type(conversation.context.launcher), "plan", staticmethod(late))
        await turn(conversation, f"!answer n It is {new}")
        said = json.dumps([each for each in await events(conversation) if each["source"] != "user"])
        assert "It is" in said
        assert new not in said


async def test_a_state_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        for size in (100_000, 300_000):
            await turn(conversation, '!state blocked_actions {"a": "' + "x" * size + '"}')
            assert len(conversation.info()["blocked_actions"]["a"]) == 100_000
        assert conversation.record.now.execution_status == "finished"


ANALYZER_KEY = "gs-of-the-analyzer-1234567890"
ANALYZER = {"kind": "GraySwanAnalyzer", "api_key": ANALYZER_KEY, "policy_id": "p"}
DEFINITION_KEY = "tok-of-the-definition-1234567890"
DEFINITIONS = [{"name": "a", "mcp_config": {"s": {"command": "x", "env": {"TOKEN": DEFINITION_KEY}}}}]


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_keys_of_analyzer_and_definitions_are_sealed_hidden_and_masked(tmp_path: Path) -> None:
    extra = {"agent_definitions": DEFINITIONS}
    # No title is made of what the user says: there the keys are the user's words.
    async with told(tmp_path, security_analyzer=ANALYZER, extra=extra, autotitle=False) as (
        harness,
        conversation,
    ):

        async def nobody_reads_them() -> None:
            state = ConversationRecord.load(conversation.record.dump())
            assert set(state.parts) == {"security_analyzer", "agent_definitions"}
            state.parts.clear()  # the tests' cipher shows what it seals
            read = [
                state.dump(),
                orjson.dumps(await conversation.durable_info()),
                conversation.full_state(),
                orjson.dumps([each for each in await events(conversation) if each["source"] != "user"]),
            ]
            assert not [each for each in read if ANALYZER_KEY.encode() in each]
            assert not [each for each in read if DEFINITION_KEY.encode() in each]
            assert conversation.info()["security_analyzer"] == {**ANALYZER, "api_key": "**********"}

        await nobody_reads_them()
        await turn(conversation, f"!answer m It is {ANALYZER_KEY} {DEFINITION_KEY}")
        await nobody_reads_them()
        own = harness.log.received("session/new")[0]["params"]["_meta"]["ostler"]
        assert (own["security_analyzer"], own["agent_definitions"]) == (ANALYZER, DEFINITIONS)
        await conversation.changes.set_security_analyzer(ANALYZER)
        await nobody_reads_them()
        given = harness.log.received("_ostler/configure")[0]["params"]
        assert given["security_analyzer"] == ANALYZER
        await conversation.stop_agent()
        # As after a restart of the server.
        stored = ConversationRecord.load(conversation.record.dump())
        assert await conversation.context.secret_box.open_parts(stored) == [ANALYZER_KEY, DEFINITION_KEY]
        assert (stored.security_analyzer, stored.extra["agent_definitions"]) == (ANALYZER, DEFINITIONS)
        fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        await turn(fork, "!answer n Yes")
        own = harness.log.received("session/resume")[-1]["params"]["_meta"]["ostler"]
        assert (own["security_analyzer"], own["agent_definitions"]) == (ANALYZER, DEFINITIONS)


async def test_an_analyzer_without_keys_stays_as_it_is(tmp_path: Path) -> None:
    async with told(tmp_path, security_analyzer=ANALYZER) as (_, conversation):
        await conversation.changes.set_security_analyzer({**ANALYZER, "api_key": "**********"})
        assert conversation.record.parts == {}
        assert conversation.info()["security_analyzer"] == {"kind": "GraySwanAnalyzer", "policy_id": "p"}
        await conversation.changes.set_security_analyzer(None)
        assert conversation.info()["security_analyzer"] is None


async def test_states_are_told_and_shown(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        metrics = {"model_name": "m", "accumulated_cost": 0.5, "costs": [1, 2], "token_usages": [3]}
        stats = json.dumps({"usage_to_metrics": {"default": metrics}})
        script = f'!state stats {stats}\n!state stats {stats}\n!state invoked_skills ["tdd"]\n'
        script += f'!state agent {{"kind":"Agent","llm":{{"model":"n","api_key":"{KEY}"}}}}\n!answer m Yes'
        found = await turn(conversation, script)
        (told_stats,) = states(found, "stats")
        assert told_stats == {"usage_to_metrics": {"default": {"model_name": "m", "accumulated_cost": 0.5}}}
        assert KEY not in json.dumps(states(found, "agent"))
        info = await conversation.durable_info()
        assert info["stats"]["usage_to_metrics"]["default"]["accumulated_cost"] == 0.5
        assert info["invoked_skills"] == ["tdd"]
        assert info["agent"]["llm"]["model"] == "n"


async def test_what_the_agent_is_at_its_start_is_shown_and_no_event(tmp_path: Path) -> None:
    async with told(tmp_path, "tells-agent") as (_, conversation):
        found = await turn(conversation, "!answer m Yes")
        assert states(found, "agent") == []
        assert (await conversation.durable_info())["agent"]["tools"] == [{"name": "terminal"}]


async def test_the_status_of_the_answer_is_the_status(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        found = await turn(conversation, "!answer m Round and round\n!status stuck")
        assert states(found, "execution_status") == ["running", "stuck"]
        found = await turn(conversation, "!failure f LLMAuthenticationError")
        assert states(found, "execution_status") == ["idle", "running", "error"]
        assert one(found, "ConversationErrorEvent")["code"] == "LLMAuthenticationError"
        # An error that it does not tell is told for it.
        found = await turn(conversation, "!status error")
        assert one(found, "ConversationErrorEvent")["code"] == "ACPPromptError"
        # It goes on without a message.
        before = len(harness.log.prompts())
        await conversation.run()
        assert await settled(conversation) == "finished"
        (prompt,) = harness.log.received("session/prompt")[before:]
        assert (prompt["params"]["prompt"], prompt["params"]["_meta"]) == ([], {"ostler": {}})


@pytest.mark.parametrize(
    ("source", "given", "gets"),
    [
        (HookSource.REQUEST, True, "request"),
        (HookSource.PROJECT, True, "request"),
        (HookSource.PROJECT, False, "project"),
        (HookSource.REQUEST, False, ""),
        (HookSource.OFF, True, ""),
    ],
)
async def test_whose_hooks_it_gets(tmp_path: Path, source: HookSource, given: bool, gets: str) -> None:
    def config(name: str) -> dict[str, Any]:
        return {"pre_tool_use": [{"matcher": "*", "hooks": [{"type": "command", "command": f"echo {name}"}]}]}

    place = tmp_path / "workspace" / ".openhands"
    place.mkdir(parents=True)
    (place / "hooks.json").write_text(json.dumps(config("project")))
    async with open_harness(tmp_path, hooks=source) as harness:
        conversation = await start(harness, extra={"hook_config": config("request")} if given else {})
        await turn(conversation, "!answer m Yes")
        given_to_it = harness.log.received("session/new")[0]["params"]["_meta"]["ostler"]
        own = given_to_it.get("hook_config")
        assert given_to_it["project_hooks"] is (source is HookSource.PROJECT)
        assert (f"echo {gets}" in json.dumps(own)) if gets else own is None


async def test_a_person_accepts_actions_that_are_in_the_journal(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        await conversation.send(
            say("!act a ls\n!act b ls\n!confirm a b\n!observe a x\n!observe b y"), run=True
        )
        await until(lambda: len(conversation.runner.permissions._open()) == 2)
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        waiting = conversation.record.reported.agent_state["permissions"]
        assert [each["action_id"] for each in waiting] == ["a", "b"]
        assert waiting[0]["security_risk"] == "HIGH"
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert [e["id"] for e in found if e["kind"] == "ActionEvent"] == ["a", "b"]
        assert states(found, "execution_status")[-3:] == ["waiting_for_confirmation", "running", "finished"]


async def test_a_person_rejects_them_with_a_reason(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        await conversation.send(say("!act a rm\n!act b rm\n!confirm a b"), run=True)
        await until(lambda: len(conversation.runner.permissions._open()) == 2)
        await conversation.respond(False, "Not on a Sunday.")
        assert await settled(conversation) == "idle"
        found = await events(conversation)
        rejected = [e for e in found if e["kind"] == "UserRejectObservation"]
        assert [(e["action_id"], e["rejection_reason"]) for e in rejected] == [
            ("a", "Not on a Sunday."),
            ("b", "Not on a Sunday."),
        ]
        assert states(found, "execution_status") == ["running", "waiting_for_confirmation", "idle"]
        assert not conversation.waiting


async def killed(conversation: Conversation) -> None:
    """End the agent's process alone; another one is there afterwards."""
    pid = ready_pid(conversation)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: ready_pid(conversation) not in (None, pid), "another process")


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_question_outlives_the_agents_process(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (harness, conversation):
        await conversation.send(say("!act a rm\n!act b rm\n!confirm a b"), run=True)
        await until(lambda: len(waiting_for(conversation)) == 2)
        await killed(conversation)
        assert [each.entry.action_id for each in waiting_for(conversation)] == ["a", "b"]
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        assert not conversation.busy
        found = await events(conversation)
        assert not [e for e in found if e["kind"] in ("ConversationErrorEvent", "AgentErrorEvent")]
        assert [each["turn_active"] for each in states(found, "agent_exit")] == [True]
        own = harness.log.received("session/resume")[-1]["params"]["_meta"]["ostler"]
        assert own["waiting"] == ["a", "b"]
        await conversation.interrupt()
        assert not conversation.waiting
        assert conversation.record.now.execution_status == "paused"


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_a_run_that_cannot_start_after_an_answer_ends_the_turn_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: AgentLifecycle) -> None:
        raise AgentFailure("ACPInitError", "It does not start.")

    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        await conversation.send(say("!act a rm\n!confirm a"), run=True)
        await until(lambda: waiting_for(conversation))
        await killed(conversation)
        with monkeypatch.context() as patched:
            patched.setattr(AgentLifecycle, "ensure", fails)
            await conversation.respond(True, "")
            assert await settled(conversation) == "error"
        found = await events(conversation)
        ended = states(found, "turn")[-1]
        assert (ended["status"], ended["number"], ended["error"]) == ("ended", 1, "ACPInitError")
        assert one(found, "AgentErrorEvent")["tool_call_id"] == "call-a"
        assert not conversation.record.now.asked
        await turn(conversation, "!mend a\n!answer m Back")
        assert conversation.record.now.execution_status == "finished"


async def test_a_question_of_a_sub_agents_ends_with_the_process(tmp_path: Path) -> None:
    """The next process does not have the sub-agent any more."""
    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        await conversation.send(say("!act a task\n!confirm-child a helper: ls"), run=True)
        await until(lambda: len(waiting_for(conversation)) == 1)
        await killed(conversation)
        assert not conversation.waiting
        assert await settled(conversation) == "error"


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_person_is_asked_about_what_a_sub_agent_does(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        script = f"!act a task\n!confirm-child a helper: rm {KEY}\n!confirm-child a helper: ls\n!observe a x"
        await conversation.send(say(f"{script}\n!answer m Yes"), run=True)
        for words, accept in (("helper: rm <secret-hidden>", False), ("helper: ls", True)):
            await until(lambda words=words: [p.entry.title for p in waiting_for(conversation)] == [words])
            assert conversation.record.now.execution_status == "waiting_for_confirmation"
            await conversation.respond(accept, "" if accept else "Not that.")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert not [event for event in found if event["kind"] == "UserRejectObservation"]
        assert one(found, "ObservationEvent")["action_id"] == "a"
        turns = [*["running", "waiting_for_confirmation"] * 2, "running", "finished"]
        assert states(found, "execution_status") == turns
        shown = [each for each in states(found, "permission_request") if each["status"] == "waiting"]
        assert [each["input"] for each in shown] == [
            {"command": "helper: rm <secret-hidden>"},
            {"command": "helper: ls"},
        ]
        assert {each["security_risk"] for each in shown} == {"LOW"}  # that of its action, not the parent's
        asked = conversation.record.reported.agent_state["permissions"]
        assert [(each["status"], each["reason"]) for each in asked] == [
            ("rejected", "Not that."),
            ("allowed", None),
        ]


def waiting_for(conversation: Conversation) -> list[Any]:
    return conversation.runner.permissions._open()


async def test_a_question_about_no_action_is_refused(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        await turn(conversation, "!act a ls\n!observe a x\n!confirm a")
        assert conversation.record.now.execution_status == "error"
        assert not conversation.waiting


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_an_interrupt_closes_what_is_open_once(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        await conversation.send(say("!act a sleep 100\n!hang"), run=True)
        await until(lambda: conversation.runner.turns._voice.calling)
        await conversation.interrupt()
        found = await events(conversation)
        assert one(found, "AgentErrorEvent")["tool_call_id"] == "call-a"
        assert kinds(found)[-1] == "InterruptEvent"
        assert conversation.record.now.execution_status == "paused"
        # What the agent tells of the call afterwards is no second end of it.
        found = await turn(conversation, "!mend a\n!observe a late\n!answer m Yes")
        assert kinds(found) == ["MessageEvent", "MessageEvent"]


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_a_killed_agent_is_reported_and_the_next_message_loads_its_memory(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await conversation.send(say("!system s\n!act a sleep 100\n!crash SIGKILL"), run=True)
        assert await settled(conversation) == "error"
        found = await events(conversation)
        assert one(found, "ConversationErrorEvent")["code"] == "ACPAgentExited"
        assert one(found, "AgentErrorEvent")["tool_call_id"] == "call-a"
        found = await turn(conversation, "!mend a\n!answer m Back")
        assert kinds(found) == ["MessageEvent", "MessageEvent"]
        own = harness.log.received("session/resume")[0]["params"]["_meta"]["ostler"]
        assert own["last_event_id"] == "a"
        assert [each["tool_call_id"] for each in own["closed"]] == ["call-a"]
        assert own["agent"] == DOCUMENT["agent"]
        assert conversation.record.reported.agent_state["memory"] == "resumed"


async def test_a_message_that_the_agent_wrote_itself_is_not_prompted_after_a_restart(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!feedback f Try again.\n!answer m Yes")
        await conversation.send(say("!answer m2 No"), run=False)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        assert [message.content[0].text for message in conversation.queued] == ["!answer m2 No"]


async def test_its_memory_is_deleted_with_the_conversation(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        memory = tmp_path / "data" / conversation.id / MEMORY_DIR
        memory.mkdir(parents=True, exist_ok=True)
        await harness.supervisor.delete(conversation.id)
        assert not memory.exists()


async def test_what_it_is_asked_beside_turns(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        assert await conversation.ask_agent("the weather") == "about the weather"  # it is started for this
        await turn(conversation, "!answer m Yes")
        await conversation.condense()
        assert one(await events(conversation), "Condensation")["summary"] == "Short."
        await conversation.load_plugin("p@m")
        (asked,) = harness.log.received("_ostler/load_plugin")
        assert asked["params"]["plugin_ref"] == "p@m"


async def test_its_model_is_switched_now_and_for_its_next_start(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        llm = {"model": "other", "api_key": "sk-another-key-9876543210"}
        await conversation.changes.switch_llm(llm)
        (configured,) = harness.log.received("_ostler/configure")
        assert configured["params"]["llm"] == llm
        info = await conversation.durable_info()
        assert (info["agent"]["llm"]["model"], info["agent"]["llm"]["api_key"]) == ("other", "**********")
        assert states(await events(conversation), "agent")[-1]["llm"]["api_key"] == "**********"
        await conversation.stop_agent()
        await turn(conversation, "!answer m2 Yes")
        own = harness.log.received("session/resume")[-1]["params"]["_meta"]["ostler"]
        assert own["agent"]["llm"] == llm


async def test_policy_and_analyzer_reach_it(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await conversation.changes.set_confirmation_policy(ALWAYS)  # it does not run yet: with its session
        await turn(conversation, "!answer m Yes")
        own = harness.log.received("session/new")[0]["params"]["_meta"]["ostler"]
        assert own["confirmation_policy"] == ALWAYS
        await conversation.changes.set_confirmation_policy({"kind": "NeverConfirm"})
        await conversation.changes.set_security_analyzer({"kind": "LLMSecurityAnalyzer"})
        given = [each["params"] for each in harness.log.received("_ostler/configure")]
        assert [each.get("confirmation_policy") for each in given] == [{"kind": "NeverConfirm"}, None]
        assert given[1]["security_analyzer"] == {"kind": "LLMSecurityAnalyzer"}


async def test_it_moves_to_another_event_with_its_memory(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        await turn(conversation, "!answer m2 Two")
        await conversation.navigate("m")
        (asked,) = harness.log.received("_ostler/navigate")
        assert asked["params"]["event_id"] == "m"
        found = await turn(conversation, "!answer m3 Three")
        assert one(found, "MessageEvent", "user")["parent_id"] == "m"
        assert len(harness.log.pids()) == 1
        assert not harness.log.received("session/new")[1:]


async def test_a_pause_stops_it_after_its_step_and_a_run_goes_on(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await conversation.send(say("!act a ls\n!until-paused\n!observe a x\n!status paused"), run=True)
        await until(lambda: conversation.runner.turns._voice.calling)
        await conversation.pause()
        assert await settled(conversation) == "paused"
        await until(lambda: not conversation.busy)
        found = await events(conversation)
        assert kinds(found)[-2:] in (["PauseEvent", "ObservationEvent"], ["ObservationEvent", "PauseEvent"])
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.received("session/prompt")[-1]["params"]["_meta"] == {"ostler": {}}


async def test_a_run_before_the_paused_step_has_ended_goes_on_after_it(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await conversation.send(say("!act a ls\n!until-paused\n!observe a x\n!status paused"), run=True)
        await until(lambda: conversation.runner.turns._voice.calling)
        await conversation.pause()
        await conversation.run()
        assert await settled(conversation) == "finished"
        prompts = harness.log.received("session/prompt")
        assert [message["params"]["_meta"] for message in prompts[1:]] == [{"ostler": {}}]
        assert not conversation.queued


async def test_a_fork_has_a_copy_of_its_memory(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        await turn(conversation, "!answer m2 Two")
        fork_id = str(uuid.uuid4())
        # As the program does, beside that of the first one.
        made = tmp_path / "data" / conversation.id / MEMORY_DIR / uuid.UUID(fork_id).hex
        made.mkdir(parents=True)
        (made / "base_state.json").write_text("{}")
        fork = await harness.supervisor.fork(
            conversation.id, ForkRequest(conversation_id=fork_id, from_event_id="m")
        )
        (asked,) = harness.log.received("session/fork")
        assert asked["params"]["_meta"]["ostler"] == {"conversation_id": fork_id, "from_event_id": "m"}
        moved = tmp_path / "data" / fork_id / MEMORY_DIR / uuid.UUID(fork_id).hex / "base_state.json"
        assert moved.is_file()
        assert fork.record.reported.agent_state["memory"] == "forked"
        assert fork.record.now.session_id == fork_id


async def test_the_model_finds_a_title(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        await turn(conversation, "!answer m One")
        await until(lambda: conversation.record.title == "A title of the model's")
    async with told(tmp_path / "other", title="Mine") as (harness, conversation):
        await turn(conversation, "!answer m One")
        await turn(conversation, "!answer m2 Two")
        assert conversation.record.title == "Mine"
        assert not harness.log.received("_ostler/title")
    asked = {"title_llm_profile": "fast", "prompt": "Name it: {conversation_content}"}
    async with told(tmp_path / "third", extra=asked) as (harness, conversation):
        await turn(conversation, "!answer m One")
        await until(lambda: harness.log.received("_ostler/title"))
        params = harness.log.received("_ostler/title")[0]["params"]
        assert (params["profile"], params["prompt"]) == ("fast", asked["prompt"])


@pytest.mark.guarantee(name="keys-and-secrets")
async def test_it_gets_the_profiles_of_models_and_says_none_of_their_keys(tmp_path: Path) -> None:
    key = "sk-of-another-profile-123456"
    async with open_harness(tmp_path) as harness:
        profiles = LlmProfileStore(AgentProfileStore(harness.settings))
        headers = {"X-Title": "OpenHands", "Accept": "application/json", "X-Api-Key": f"{key}-too"}
        await profiles.save("other", {"model": "o", "api_key": key, "extra_headers": headers})
        conversation = await start(harness, autotitle=False)  # a title would be of the user's words
        await turn(conversation, f"!answer m It is {key} {key}-too OpenHands application/json")
        own = harness.log.received("session/new")[0]["params"]["_meta"]["ostler"]
        assert own["llm_profiles"]["other"]["api_key"] == key
        assert own["meta_profiles"] == {}
        answer = await conversation.final_response()
        assert answer == "It is <secret-hidden> <secret-hidden> OpenHands application/json"
        assert key not in conversation.record.dump().decode()


async def test_a_model_is_not_tried_where_the_agent_is_not_installed(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        with pytest.raises(AgentFailure) as caught:
            await harness.supervisor.try_model({"model": "m", "api_key": KEY})
        assert caught.value.code == "ACPSpawnError"
        assert not list((tmp_path / "data").glob("*"))


async def test_what_changes_while_it_starts_reaches_it_before_its_first_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on = trio.Event(), trio.Event()
    opening = sessions.open_agent

    async def held(*given: Any) -> Any:
        started = await opening(*given)
        opened.set()
        await go_on.wait()
        return started

    monkeypatch.setattr(sessions, "open_agent", held)
    llm = {"model": "other", "api_key": "sk-another-key-9876543210"}
    async with told(tmp_path) as (harness, conversation):
        await conversation.send(say("!answer m Yes"), run=True)
        await opened.wait()
        await conversation.changes.set_confirmation_policy(ALWAYS)
        await conversation.changes.set_security_analyzer({"kind": "LLMSecurityAnalyzer"})
        await conversation.changes.switch_llm(llm)
        go_on.set()
        assert await settled(conversation) == "finished"
        (given,) = harness.log.received("_ostler/configure")
        assert given["params"]["confirmation_policy"] == ALWAYS
        assert given["params"]["security_analyzer"] == {"kind": "LLMSecurityAnalyzer"}
        assert given["params"]["llm"] == llm
        asked = [record["message"].get("method") for record in harness.log.records("received")]
        assert asked.index("_ostler/configure") < asked.index("session/prompt")
        # The start after this one has it from the record, and needs no word of it.
        await conversation.stop_agent()
        await turn(conversation, "!answer m2 Yes")
        own = harness.log.received("session/resume")[0]["params"]["_meta"]["ostler"]
        assert (own["confirmation_policy"], own["agent"]["llm"]) == (ALWAYS, llm)
        assert len(harness.log.received("_ostler/configure")) == 1


def opened_again(harness: Harness) -> dict[str, Any]:
    """What the agent got when its session was opened last."""
    sent = [record["message"] for record in harness.log.records("received")]
    again = [each for each in sent if each.get("method") in ("session/load", "session/resume")]
    own: dict[str, Any] = again[-1]["params"]["_meta"]["ostler"]
    return own


async def test_what_was_changed_holds_in_a_session_that_is_opened_again(tmp_path: Path) -> None:
    llm = {"model": "other", "api_key": "sk-another-key-9876543210"}
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        await conversation.changes.set_confirmation_policy(ALWAYS)
        await conversation.changes.switch_llm(llm)
        run = conversation.agent.ready
        assert run is not None
        for again in (conversation.runner.repair.load_again, conversation.runner.repair.reopen):
            before = len(harness.log.received("_ostler/configure"))
            await again(run)
            assert opened_again(harness)["confirmation_policy"] == ALWAYS
            (given,) = harness.log.received("_ostler/configure")[before:]
            assert given["params"]["llm"] == llm


def users(text: str = "x") -> MessageEvent:
    return MessageEvent(id=new_event_id(), source="user", llm_message=say(text))


@pytest.mark.guarantee(name="no-blind-retry")
async def test_what_it_tells_again_after_many_messages_is_no_second_event(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        await turn(conversation, "!answer m Yes")
        written = [users() for _ in range(600)]
        conversation.recorder.write(written)
        await conversation.stop_agent()
        found = await turn(conversation, f"{repeats(written[550].id)}\n!answer m2 Back")
        assert [event["id"] for event in found if event["source"] == "agent"] == ["m2"]
        await turn(conversation, "!answer m3 And on")  # the log takes more


async def test_a_message_that_it_was_handed_is_no_second_event(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        await turn(conversation, "!answer m Yes")
        first = await conversation.send(say("!answer m2 Yes"), run=False)
        found = await turn(conversation, f"{repeats(first)}\n!answer m3 Back")
        assert [event["id"] for event in found if event["source"] == "agent"] == ["m2", "m3"]
        await turn(conversation, "!answer m4 And on")


async def test_a_session_that_is_opened_again_knows_what_the_log_has_by_then(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        run = conversation.agent.ready
        assert run is not None
        for number, again in enumerate(
            (conversation.runner.repair.load_again, conversation.runner.repair.reopen)
        ):
            await turn(conversation, f"!answer n{number} Yes")
            written = users()
            conversation.recorder.write([written])
            await again(run)
            assert opened_again(harness)["last_event_id"] == f"n{number}"
            found = await turn(conversation, f"{repeats(written.id)}\n!answer o{number} Back")
            assert [event["id"] for event in found if event["source"] == "agent"] == [f"o{number}"]


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_message_that_the_agent_died_of_is_handed_over_again(tmp_path: Path) -> None:
    async with told(tmp_path, "crash=prompt", "until-start=1") as (harness, conversation):
        sent = await conversation.send(say("!answer m Yes"), run=True)
        assert await settled(conversation) == "error"
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness) == [sent, sent]
        assert await conversation.final_response() == "Yes"


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_message_that_was_interrupted_before_its_prompt_is_handed_over_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handing = HandOver._handed_over
    waits = trio.Event()

    async def held(hand_over: HandOver) -> None:
        waits.set()
        await hand_over._queue.called_off.wait()

    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        monkeypatch.setattr(HandOver, "_handed_over", held)
        sent = await conversation.send(say("!answer m2 Two"), run=True)
        await waits.wait()
        await conversation.interrupt()
        assert conversation.record.now.execution_status == "paused"
        assert len(handed(harness)) == 1
        monkeypatch.setattr(HandOver, "_handed_over", handing)
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness)[1:] == [sent]
        assert await conversation.final_response() == "Two"


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_message_that_it_worked_on_is_not_handed_over_again(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        sent = await conversation.send(say("!act a ls\n!crash SIGKILL"), run=True)
        assert await settled(conversation) == "error"
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness) == [sent, None]


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_run_that_would_go_on_ends_with_the_agent(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await conversation.send(say("!act a ls\n!until-paused\n!crash SIGKILL"), run=True)
        await until(lambda: conversation.runner.turns._voice.calling)
        await conversation.pause()
        await conversation.run()
        assert await settled(conversation) == "error"
        assert not conversation.queued
        sent = await conversation.send(say("!answer m Yes"), run=True)
        assert await settled(conversation) == "finished"
        assert handed(harness)[1:] == [sent]


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_run_that_would_go_on_ends_with_a_start_that_fails(tmp_path: Path) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes\n!status stuck")
        await conversation.stop_agent()
        (workspace := tmp_path / "workspace").rename(tmp_path / "elsewhere")
        workspace.write_text("no directory")
        await conversation.run()
        assert await settled(conversation) == "error"
        workspace.unlink()
        sent = await conversation.send(say("!answer m2 Yes"), run=True)
        assert await settled(conversation) == "finished"
        assert handed(harness)[1:] == [sent]


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_pause_while_it_starts_keeps_the_message_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on = trio.Event(), trio.Event()
    opening = sessions.open_agent

    async def held(*given: Any) -> Any:
        opened.set()
        await go_on.wait()
        return await opening(*given)

    monkeypatch.setattr(sessions, "open_agent", held)
    async with told(tmp_path) as (harness, conversation):
        sent = await conversation.send(say("!answer m Yes"), run=True)
        await opened.wait()
        await conversation.pause()
        go_on.set()
        await until(lambda: not conversation.busy)
        assert conversation.record.now.execution_status == "paused"
        assert handed(harness) == []
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness) == [sent]


async def test_a_pause_before_the_prompt_keeps_the_message_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handing = HandOver._handed_over
    waits, go_on = trio.Event(), trio.Event()

    async def held(hand_over: HandOver) -> None:
        waits.set()
        await go_on.wait()

    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m Yes")
        monkeypatch.setattr(HandOver, "_handed_over", held)
        sent = await conversation.send(say("!answer m2 Two"), run=True)
        await waits.wait()
        await conversation.pause()
        go_on.set()
        await until(lambda: not conversation.busy)
        assert conversation.record.now.execution_status == "paused"
        assert len(handed(harness)) == 1
        monkeypatch.setattr(HandOver, "_handed_over", handing)
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness)[1:] == [sent]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_message_while_it_moves_finds_an_agent_of_its_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = requests.request

    async def meanwhile(run: Any, method: str, *given: Any) -> Any:
        answer = await request(run, method, *given)
        if method == requests.NAVIGATE:
            await conversation.send(say("!answer m3 Three"), run=True)
        return answer

    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        await turn(conversation, "!answer m2 Two")
        monkeypatch.setattr(requests, "request", meanwhile)
        with pytest.raises(AlreadyRunning):
            await conversation.navigate("m")
        assert await settled(conversation) == "finished"
        assert not conversation.record.moves
        # The agent of the other branch is gone; this one is told what was said.
        assert len(harness.log.pids()) == 2
        assert "Two" in harness.log.prompts()[-1]
        assert await conversation.final_response() == "Three"


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_it_does_not_move_where_the_conversation_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.conversations.conversation.MOVES_MAX", 0)
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        await turn(conversation, "!answer m2 Two")
        with pytest.raises(NotPossible):
            await conversation.navigate("m")
        assert not harness.log.received("_ostler/navigate")


def copied(conversation: Conversation, root: Path, fork_id: str, name: str = "base_state.json") -> Path:
    """Makes a copy of the memory as the program does, and returns where it belongs."""
    made = root / "data" / conversation.id / MEMORY_DIR / uuid.UUID(fork_id).hex
    made.mkdir(parents=True)
    (made / name).write_text("{}")
    return root / "data" / fork_id / MEMORY_DIR / uuid.UUID(fork_id).hex / name


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_while_a_message_arrives_gets_a_transcript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_memory = BuiltIn._copy_memory

    async def meanwhile(self: BuiltIn, *given: Any) -> None:
        await copy_memory(self, *given)
        await turn(conversation, "!answer m2 Two")

    monkeypatch.setattr(BuiltIn, "_copy_memory", meanwhile)
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        fork_id = str(uuid.uuid4())
        memory = copied(conversation, tmp_path, fork_id)
        fork = await harness.supervisor.fork(conversation.id, ForkRequest(conversation_id=fork_id))
        assert await fork.final_response() == "Two"
        assert fork.record.reported.agent_state["memory"] == "lost"
        assert not memory.exists()


async def test_a_fork_has_its_copy_though_the_agent_starts_anew_before_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")

        async def meanwhile(*args: Any) -> None:
            await harness.supervisor.stop_agent(conversation.id)
            async with conversation.runner.at_hand():
                await move_memory(*args)

        monkeypatch.setattr("supervisor.conversations.built_in.memory.move_memory", meanwhile)
        fork_id = str(uuid.uuid4())
        memory = copied(conversation, tmp_path, fork_id)
        fork = await harness.supervisor.fork(conversation.id, ForkRequest(conversation_id=fork_id))
        assert fork.record.reported.agent_state["memory"] == "forked"
        assert memory.is_file()


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
async def test_a_copy_for_a_fork_that_the_agent_refused_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """`late`: the agent makes it after its answer was waited for in vain."""

    async def refused(*given: Any) -> Any:
        raise NotAccepted("no")

    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        fork_id = str(uuid.uuid4())
        made = tmp_path / "data" / conversation.id / MEMORY_DIR / uuid.UUID(fork_id).hex
        own = made.with_name(uuid.UUID(conversation.id).hex)
        own.mkdir(parents=True)
        if not late:
            copied(conversation, tmp_path, fork_id)
        with monkeypatch.context() as patch:
            patch.setattr(requests, "request", refused)
            fork = await harness.supervisor.fork(conversation.id, ForkRequest(conversation_id=fork_id))
        assert fork.record.reported.agent_state["memory"] == "lost"
        assert not made.exists()
        if late:
            copied(conversation, tmp_path, fork_id)
            await harness.supervisor.stop_agent(conversation.id)
            await turn(conversation, "!answer m2 Two")
        assert [each.name for each in made.parent.iterdir()] == [own.name]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_that_fails_leaves_no_memory_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any, **options: Any) -> Any:
        raise JournalUnavailable("The disk is full.")

    async with told(tmp_path) as (harness, conversation):
        await turn(conversation, "!answer m One")
        request = ForkRequest(conversation_id=str(uuid.uuid4()))
        assert request.conversation_id is not None
        memory = copied(conversation, tmp_path, request.conversation_id)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "fork", broken)
            with pytest.raises(JournalUnavailable):
                await harness.supervisor.fork(conversation.id, request)
        assert not memory.exists()
        # Nor is what a killed server left in the way.
        memory.parent.mkdir(parents=True)
        (memory.parent / "old.json").write_text("{}")
        copied(conversation, tmp_path, request.conversation_id)
        fork = await harness.supervisor.fork(conversation.id, request)
        assert fork.record.reported.agent_state["memory"] == "forked"
        assert [each.name for each in memory.parent.iterdir()] == [memory.name]
