"""What a person who is asked gets to see, how each request is answered, and what is kept of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.recording.tool_calls.blocks import diff_lines
from supervisor.conversations.state.errors import NotAccepted, NotPossible
from supervisor.events import Vocabulary
from tests.conversations.harness import (
    QUICK,
    Harness,
    answer,
    become,
    events,
    kinds,
    one,
    open_harness,
    say,
    settled,
    states,
    turn,
    until,
)

ALWAYS = {"kind": "AlwaysConfirm"}
BOTH = pytest.mark.parametrize("vocabulary", list(Vocabulary))


async def asked(conversation: Conversation, text: str, count: int = 1) -> list[dict[str, Any]]:
    """Send a message, and give the requests that wait then."""
    await conversation.send(say(text), run=True)
    await until(lambda: len(waiting(conversation)) == count, "a question")
    return waiting(conversation)


def waiting(conversation: Conversation) -> list[dict[str, Any]]:
    listed = conversation.record.reported.agent_state.get("permissions", [])
    return [each for each in listed if each["status"] == "waiting"]


def outcomes(harness: Harness) -> list[dict[str, Any]]:
    found = [r["message"].get("result") for r in harness.log.records("received")]
    return [each["outcome"] for each in found if isinstance(each, dict) and "outcome" in each]


def calls(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first events of tool calls."""
    begun: list[dict[str, Any]] = []
    open_calls: set[str] = set()  # of which every second event is the end
    for event in found:
        if event["kind"] == "ActionEvent" and event["tool_name"] != "finish":
            begun.append(event)
        elif event["kind"] == "ACPToolCallEvent":
            if event["tool_call_id"] not in open_calls:
                begun.append(event)
            open_calls ^= {event["tool_call_id"]}
    return begun


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
async def test_the_words_of_a_request_are_in_the_action(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        await asked(conversation, "!askwords touch x")
        action = one(await events(conversation), "ActionEvent")
        words = "Requesting approval to run: `touch x`"
        assert action["action"]["data"]["permission"]["content"][0]["content"]["text"] == words
        assert action["thought"] == [{"type": "text", "text": words, "cache_prompt": False}]
        assert json.loads(action["tool_call"]["arguments"]) == {}
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
async def test_a_diff_is_in_the_action_and_in_the_result(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        path = tmp_path / "workspace" / "a.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("one\ntwo\nthree\n")
        await asked(conversation, "!askdiff a.txt one\\n2\\nthree\\n")
        action = one(await events(conversation), "ActionEvent")
        permission = action["action"]["data"]["permission"]
        (block,) = permission["content"]
        assert (block["type"], block["path"]) == ("diff", str(path))
        assert (block["old_text"], block["new_text"]) == ("one\ntwo\nthree\n", "one\n2\nthree\n")
        assert permission["locations"] == [{"path": str(path), "line": 1}]
        (shown,) = action["thought"]
        assert f"`{path} (changed)`" in shown["text"]
        assert "```diff\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n```" in shown["text"]
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        result = next(e for e in found if e.get("action_id") == action["id"])
        text = result["observation"]["content"][0]["text"]
        assert "-two\n+2" in text
        assert "The file was written." in text


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_what_is_asked_has_no_secret_in_it(tmp_path: Path) -> None:
    secret = "line-one-of-it\nline-two-of-it"
    async with open_harness(tmp_path, secrets={"KEY_OF_TWO_LINES": secret}) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        shown = secret.replace("\n", "\\n")
        await conversation.send(say(f"!askdiff a.txt {shown}"), run=True)
        await until(lambda: waiting(conversation), "a question")
        found = [event for event in await events(conversation) if event["source"] != "user"]
        assert "line-two-of-it" not in json.dumps(found)
        assert "<secret-hidden>" in json.dumps(found)
        await conversation.respond(False, "no")
        await settled(conversation)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_request_its_choice_and_who_made_it_are_kept(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("options=allow_always,allow_once,reject_once")
        await turn(conversation, "!perm")
        await conversation.changes.set_confirmation_policy(ALWAYS)
        (request,) = await asked(conversation, "!perm")
        offered = [(each["id"], each["name"], each["kind"]) for each in request["options"]]
        assert offered == [
            ("opt-allow_always", "Allow Always", "allow_always"),
            ("opt-allow_once", "Allow Once", "allow_once"),
            ("opt-reject_once", "Reject Once", "reject_once"),
        ]
        assert orjson.loads(conversation.full_state())["value"]["agent_state"]["permissions"][-1] == request
        assert conversation.info()["agent_state"]["permissions"][-1] == request
        await conversation.respond(False, "not this one", request["id"])
        await settled(conversation)
        await asked(conversation, "!perm")
        await conversation.interrupt()
        told = states(await events(conversation), "permission_request")
        assert [(each["status"], each["by"], each["option_id"]) for each in told] == [
            ("allowed", "policy", "opt-allow_once"),
            ("waiting", None, None),
            ("rejected", "person", "opt-reject_once"),
            ("waiting", None, None),
            ("cancelled", "cancel", None),
        ]
        assert [each["reason"] for each in told] == [None, None, "not this one", None, None]
        assert told[1]["id"] == told[2]["id"] == request["id"]
        actions = {e["id"]: e for e in await events(conversation) if e["kind"] == "ActionEvent"}
        assert actions[told[1]["action_id"]]["tool_call_id"] == told[1]["tool_call_id"]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_request_that_waits_survives_as_long_as_its_server(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        (request,) = await asked(conversation, "!perm")
        await conversation.log.flushed()
        (stored,) = await conversation.context.journal.get_records([conversation.id])
        assert stored is not None
        assert orjson.loads(stored.record)["agent_state"]["permissions"] == [request]
        # As it is after a server that died:
        become(conversation, turn_open=False)
        await conversation.interrupt()
        conversation.record.reported.agent_state["permissions"] = [request]
        await conversation.recover()
        last = states(await events(conversation), "permission_request")[-1]
        assert (last["id"], last["status"], last["by"]) == (request["id"], "cancelled", "cancel")
        assert waiting(conversation) == []


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_each_of_several_requests_is_answered_by_its_id(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        first, second, third = await asked(conversation, "!perms 3", 3)
        assert len({first["id"], second["id"], third["id"]}) == 3
        await conversation.respond(False, "no", second["id"])
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        await conversation.respond(True, "", first["id"], "opt-allow_always")
        assert [each["id"] for each in waiting(conversation)] == [third["id"]]
        with pytest.raises(NotPossible):
            await conversation.respond(True, "", second["id"])
        with pytest.raises(NotAccepted, match="opt-none"):
            await conversation.respond(True, "", third["id"], "opt-none")
        with pytest.raises(NotAccepted, match="reject_once"):
            await conversation.respond(True, "", third["id"], "opt-reject_once")
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        chosen = [each["optionId"] for each in outcomes(harness)]
        assert sorted(chosen) == ["opt-allow_always", "opt-allow_once", "opt-reject_once"]
        assert "allowed 2 of 3" in answer(await events(conversation))


# -- calls that never come, or come again -------------------------------------------------------------


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
@pytest.mark.parametrize("policy", [ALWAYS, {"kind": "NeverConfirm"}])
async def test_a_request_whose_call_never_comes_is_closed_without_an_error(
    tmp_path: Path, vocabulary: Vocabulary, policy: dict[str, str]
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=policy)
        await conversation.send(say("!askonly May I index?\nsome words"), run=True)
        if policy is ALWAYS:
            await until(lambda: waiting(conversation), "a question")
            await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        found = [e for e in await events(conversation) if e["kind"] != "ConversationStateUpdateEvent"]
        assert "AgentErrorEvent" not in kinds(found)
        assert not any(event.get("is_error") for event in found)
        begun = next(i for i, e in enumerate(found) if e.get("tool_call_id") == "only-asked")
        ended = next(i for i, e in enumerate(found) if i > begun and e.get("tool_call_id") == "only-asked")
        finish = next(i for i, e in enumerate(found) if (e.get("action") or {}).get("kind") == "FinishAction")
        assert begun < ended < finish
        assert "Allowed." in json.dumps(found[ended])


async def test_a_request_under_another_id_is_closed_when_its_call_comes(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, "!askother make\ndone")
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert "AgentErrorEvent" not in kinds(found)
        assert {e["tool_call_id"] for e in calls(found)} == {"asked-id", "call_1"}
        assert kinds(found).count("MessageEvent") == 1  # nothing ran unasked


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
async def test_one_request_may_be_for_all_calls_of_an_answer(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        (request,) = await asked(conversation, "!askforall 2")
        begun = calls(await events(conversation))
        assert [e["tool_call_id"] for e in begun] == ["call_1", "call_2"]
        # The question says nothing; who is asked sees what it is about all the same.
        question = one(await events(conversation), "MessageEvent", "agent")["llm_message"]["content"][0][
            "text"
        ]
        assert "step 0" in question
        assert '"n": 1' in question
        assert request["tool_call_ids"] == ["call_1", "call_2"]
        assert request["security_risk"] == "HIGH"
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert len(calls(found)) == 2
        assert "AgentErrorEvent" not in kinds(found)
        assert all("unasked" not in each for each in states(found, "confirmation"))


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_question_that_says_nothing_is_as_risky_as_what_it_is_about(tmp_path: Path) -> None:
    policy = {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": False}
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=policy)
        (request,) = await asked(conversation, "!askforall 2")
        assert request["security_risk"] == "HIGH"  # of commands, and not UNKNOWN, which asks nobody here
        await conversation.respond(False, "no")
        await settled(conversation)


async def test_a_question_tells_of_so_many_calls_as_a_person_reads(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, "!askforall 23")
        question = one(await events(conversation), "MessageEvent", "agent")["llm_message"]["content"][0][
            "text"
        ]
        assert ("step 19" in question, "step 20" in question) == (True, False)
        assert question.endswith("[3 calls more]")
        assert len(calls(await events(conversation))) == 23
        await conversation.respond(False, "no")
        await settled(conversation)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
@pytest.mark.parametrize("status", ["in_progress", "failed", "pending"])
async def test_a_rejected_call_that_is_announced_again_is_no_new_one(
    tmp_path: Path, vocabulary: Vocabulary, status: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        await asked(conversation, f"!askagain {status}")
        await conversation.respond(False, "no")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert [e["tool_call_id"] for e in calls(found)] == ["call_1"]
        assert kinds(found).count("UserRejectObservation") == 1
        assert "AgentErrorEvent" not in kinds(found)


async def test_a_cancelled_call_that_is_announced_again_is_no_new_one(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, "!asklate in_progress")
        await conversation.interrupt()
        await settled(conversation)
        await turn(conversation, "go on")
        assert [e["tool_call_id"] for e in calls(await events(conversation))] == ["call_1"]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
async def test_calls_of_one_answer_appear_once_each_and_before_the_first_question_waits(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    quick = attrs.evolve(QUICK, hold=0.05, hold_at_most=0.2)
    async with open_harness(tmp_path, deadlines=quick) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        await conversation.send(say("!batch 3"), run=True)
        for number in range(3):
            title = f"step {number}"
            await until(lambda: title in [w["title"] for w in waiting(conversation)], "a question")  # noqa: B023
            await trio.sleep(0.4)  # longer than anything is held back
            assert len(waiting(conversation)) == 1
            found = await events(conversation)
            begun = {e["tool_call_id"]: e["id"] for e in calls(found)}
            assert sorted(begun) == ["call_1", "call_2", "call_3"]
            (request,) = waiting(conversation)
            assert request["tool_call_id"] == f"call_{number + 1}"
            assert request["action_id"] == begun[request["tool_call_id"]]
            # Clients show their buttons at the newest event of the agent's.
            newest = [e for e in found if e["source"] == "agent"][-1]
            if number:
                assert newest["llm_message"]["content"][0]["text"].startswith(f"May I? {title}\n")
                assert f'"number": {number}' in newest["llm_message"]["content"][0]["text"]
            else:
                assert newest["id"] == request["action_id"]
            await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert sorted(e["tool_call_id"] for e in calls(found)) == ["call_1", "call_2", "call_3"]
        assert all(e["kind"] == "ActionEvent" for e in calls(found))
        assert kinds(found).count("ObservationEvent") == 3 + 1  # and the end


# -- ends ----------------------------------------------------------------------------------------------


async def test_a_turn_that_the_agent_cancels_after_a_rejection_is_finished(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, "!stopif")
        await conversation.respond(False, "no")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert states(found, "execution_status")[-1] == "finished"
        assert kinds(found)[-2:] == ["ActionEvent", "ObservationEvent"]  # a finish event


async def test_text_before_and_after_the_end_of_a_call_is_not_glued(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!midway")
        message = one(found, "MessageEvent", "agent")
        assert message["llm_message"]["content"][0]["text"] == "I run the tests now."
        assert answer(found) == "They pass."


# -- terminals -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("directive", ["!shell", "!lateshell"])
async def test_a_result_that_names_a_terminal_has_its_output(
    tmp_path: Path, vocabulary: Vocabulary, directive: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary)
        found = await turn(conversation, f"{directive} echo from-the-terminal; echo é >&2")
        closing = [e for e in found if e.get("tool_call_id") == "call_1"][-1]
        assert "from-the-terminal\\n\\u00e9" in json.dumps(closing)


async def test_a_terminals_large_output_is_cut_and_kept(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=Vocabulary.CORE)
        found = await turn(conversation, "!shell sleep 0.2; seq 1 200000; echo the-end")
        observation = next(e for e in found if e["kind"] == "ObservationEvent")
        text = observation["observation"]["content"][0]["text"]
        assert text.startswith("1\n2\n3\n")
        assert text.endswith("200000\nthe-end\n")
        assert "bytes cut; all of it is in blob" in text
        assert len(text) < 300_000


async def test_a_terminals_output_is_streamed_while_it_runs(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        frames: list[dict[str, Any]] = []
        publish = conversation.log.publish

        def spy(frame: Any) -> None:
            frames.append(orjson.loads(frame.session))
            publish(frame)

        conversation.log.publish = spy  # type: ignore[method-assign]
        await conversation.send(say("!shell echo early; while [ ! -e go ]; do sleep 0.05; done"), run=True)
        await until(lambda: [f for f in frames if f["type"] == "tool_output"], "live output")
        (frame,) = [f for f in frames if f["type"] == "tool_output"]
        assert (frame["tool_call_id"], frame["content"], frame["skipped"]) == ("call_1", "early\n", 0)
        assert conversation.busy
        (tmp_path / "workspace" / "go").touch()
        assert await settled(conversation) == "finished"


# -- modes ---------------------------------------------------------------------------------------------


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_conversation_that_confirms_sets_the_mode_that_asks(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("mode-names=accept-edits,plan,default", confirmation_policy=ALWAYS)
        await turn(conversation, "hello")
        sent = [r["message"] for r in harness.log.records("received") if "method" in r["message"]]
        (chosen,) = [m["params"] for m in sent if m["method"] == "session/set_config_option"]
        assert (chosen["configId"], chosen["value"]) == ("mode", "default")
        told = {"mode": "default", "asks": True, "set": True}
        assert conversation.record.reported.agent_state["confirmation"] == told
        assert states(await events(conversation), "confirmation") == [told]


@pytest.mark.parametrize(
    ("modes", "policy", "settings"),
    [
        ("default,yolo,plan", ALWAYS, {}),
        ("accept-edits,default", {"kind": "NeverConfirm"}, {}),
        ("accept-edits,default", ALWAYS, {"acp_session_mode": "accept-edits"}),
        ("build,plan", ALWAYS, {}),
    ],
)
async def test_a_mode_that_asks_is_not_set_in_vain(
    tmp_path: Path, modes: str, policy: dict[str, str], settings: dict[str, str]
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(
            f"mode-names={modes}", confirmation_policy=policy, settings=settings
        )
        await turn(conversation, "hello")
        sent = [r["message"] for r in harness.log.records("received") if "method" in r["message"]]
        chosen = [m["params"]["value"] for m in sent if m["method"] == "session/set_config_option"]
        assert chosen == list(settings.values())


async def test_a_policy_that_changes_sets_the_mode_of_a_living_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("mode-names=accept-edits,default")
        await turn(conversation, "hello")
        await conversation.changes.set_confirmation_policy(ALWAYS)
        await until(lambda: conversation.record.reported.agent_state.get("confirmation"), "the mode")
        assert conversation.record.reported.agent_state["confirmation"]["mode"] == "default"


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
async def test_a_tool_that_ran_unasked_is_told_once(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(
            "without=modes,config", vocabulary=vocabulary, confirmation_policy=ALWAYS
        )
        found = await turn(conversation, "!tool read look\n!tool execute make\n!tool execute make")
        warning = one(found, "MessageEvent", "environment")
        assert "without asking" in warning["llm_message"]["content"][0]["text"]
        last = states(found, "confirmation")[-1]
        assert last["asks"] is False
        assert last["unasked"]["title"] == "make"
        assert conversation.record.reported.agent_state["confirmation"] == last
        assert kinds(await turn(conversation, "!tool execute make")).count("MessageEvent") == 1  # the user's


def test_a_diff_is_what_diff_says() -> None:
    old = "".join(f"line {number}\n" for number in range(30))
    new = old.replace("line 10\n", "").replace("line 20\n", "line 20\n-- \n")
    assert diff_lines(old, new) == [
        "@@ -8,7 +8,6 @@",
        " line 7",
        " line 8",
        " line 9",
        "-line 10",
        " line 11",
        " line 12",
        " line 13",
        "@@ -19,6 +18,7 @@",
        " line 18",
        " line 19",
        " line 20",
        "+-- ",
        " line 21",
        " line 22",
        " line 23",
    ]
    assert diff_lines("-- \n", "x\n") == ["@@ -1 +1 @@", "--- ", "+x"]
    assert diff_lines(None, "a\nb") == ["@@ -0,0 +1,2 @@", "+a", "+b"]
    assert diff_lines("same", "same") == []
