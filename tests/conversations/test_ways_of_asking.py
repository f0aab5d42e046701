"""Questions as real agents ask them: each action appears once, a no is a no, and nobody is accused.

The scripted agent does what these agents were recorded to send (`fake_agent/scripted_agent/recorded.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.events import Vocabulary
from tests.conversations.harness import (
    Harness,
    events,
    kinds,
    open_harness,
    say,
    settled,
    states,
    turn,
    until,
)
from tests.conversations.test_asked import ALWAYS, BOTH, asked, calls, outcomes, waiting

ENDS = frozenset({"ObservationEvent", "AgentErrorEvent", "UserRejectObservation"})


@attrs.frozen
class Way:
    """How an agent asks. `text` makes it do so; `made` are the files that come of it."""

    text: str
    made: tuple[str, ...]
    kind: str = "execute"
    risk: str = "HIGH"
    questions: int = 1
    """How many questions there are, one after the other."""


WAYS = {
    "openhands": Way("!as-openhands touch a", ("a",)),
    "openhands, several": Way("!as-openhands touch a;; touch b", ("a", "b")),
    "deepagents": Way("!as-deepagents touch a", ("a",)),
    "deepagents, several": Way("!as-deepagents touch a;; touch b", ("a", "b"), questions=2),
    "hermes": Way("!as-hermes rm -f x; touch a", ("a",)),
    "hermes, an edit": Way("!as-hermes-edit a text", ("a",), kind="edit", risk="MEDIUM"),
    "iac-code": Way("!as-iac-code touch a", ("a",)),
    "droid": Way("!as-droid touch a;; touch b;; touch c", ("a", "b", "c")),
    "kimi": Way("!as-kimi touch a", ("a",)),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def ends(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that end calls."""
    return [event for event in found if event["kind"] in ENDS and event["tool_name"] != "finish"]


def notes(found: list[dict[str, Any]]) -> list[str]:
    """What Ostler says itself."""
    said = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
    return [each["llm_message"]["content"][0]["text"] for each in said]


def there(harness: Harness, way: Way) -> list[str]:
    return [name for name in way.made if (harness.root / "workspace" / name).exists()]


async def answer_all(conversation: Conversation, way: Way, accept: bool) -> list[dict[str, Any]]:
    """Have it ask, answer each question, and give what was asked."""
    await conversation.send(say(way.text), run=True)
    seen: list[dict[str, Any]] = []
    for _ in range(way.questions):
        await until(lambda: waiting(conversation), "a question")
        seen += waiting(conversation)
        await conversation.respond(accept, "" if accept else "not that")
    assert await settled(conversation) == "finished"
    return seen


def each_call_once(found: list[dict[str, Any]], way: Way) -> None:
    """Each action is shown once and ends once."""
    begun = [event["tool_call_id"] for event in calls(found)]
    assert len(begun) == len(set(begun)) == len(way.made)
    assert sorted(event["tool_call_id"] for event in ends(found)) == sorted(begun)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
@each_way
async def test_what_is_allowed_runs_and_appears_once(
    tmp_path: Path, way: Way, vocabulary: Vocabulary
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        seen = await answer_all(conversation, way, accept=True)
        found = await events(conversation)
        assert there(harness, way) == list(way.made)
        each_call_once(found, way)
        assert {event["kind"] for event in ends(found)} == {"ObservationEvent"}
        assert notes(found) == []
        assert [(each["tool_kind"], each["security_risk"]) for each in seen] == [
            (way.kind, way.risk)
        ] * way.questions
        actions = {event["id"]: event for event in calls(found)}
        assert {event["tool_name"] for event in actions.values()} == {way.kind}
        assert {event["security_risk"] for event in actions.values()} == {way.risk}
        assert all(each["action_id"] in actions for each in seen)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
@each_way
async def test_what_is_rejected_does_not_run_and_accuses_nobody(
    tmp_path: Path, way: Way, vocabulary: Vocabulary
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(
            "mode-names=default", vocabulary=vocabulary, confirmation_policy=ALWAYS
        )
        await answer_all(conversation, way, accept=False)
        found = await events(conversation)
        assert there(harness, way) == []
        each_call_once(found, way)
        assert "UserRejectObservation" in kinds(found)
        assert not [note for note in notes(found) if "without asking" in note]
        state = conversation.record.reported.agent_state["confirmation"]
        assert state["asks"] is True
        assert not {"unasked", "kinds"} & state.keys()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@each_way
async def test_one_interrupt_is_one_error_for_each_call(tmp_path: Path, way: Way) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, way.text)
        await conversation.interrupt()
        found = await events(conversation)
        each_call_once(found, way)
        assert there(harness, way) == []
        assert notes(found) == []


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@each_way
async def test_all_of_it_is_shown_before_the_question_waits(tmp_path: Path, way: Way) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        (request,) = await asked(conversation, way.text)
        found = await events(conversation)
        shown = json.dumps(
            [e for e in found if e["kind"] in ("ActionEvent", "MessageEvent") and e["source"] == "agent"]
        )
        for name in way.made:
            assert f"touch {name}" in shown or f"/{name}" in shown
        newest = [e for e in found if e["source"] == "agent"][-1]
        assert newest["kind"] == "MessageEvent" or newest["id"] == request["action_id"]
        await conversation.interrupt()


@BOTH
async def test_one_question_for_several_calls_names_them(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=ALWAYS)
        (request,) = await asked(conversation, WAYS["openhands, several"].text)
        found = await events(conversation)
        actions = calls(found)
        assert request["tool_call_ids"] == [event["tool_call_id"] for event in actions]
        assert (request["title"], request["action_id"]) == ("Confirm Agent Actions", actions[-1]["id"])
        question = [e for e in found if e["kind"] == "MessageEvent"][-1]
        text = question["llm_message"]["content"][0]["text"]
        assert text.startswith("May I? Confirm Agent Actions")
        assert "$ touch a" in text
        assert "$ touch b" in text
        await conversation.respond(False, "not that")
        assert await settled(conversation) == "finished"
        rejected = [e for e in await events(conversation) if e["kind"] == "UserRejectObservation"]
        assert {event["action_id"] for event in rejected} == {event["id"] for event in actions}


# -- a no that is taken for a yes ----------------------------------------------------------------------------


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_rejected_command_does_not_run_in_ostlers_terminal(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        way = WAYS["iac-code"]
        await answer_all(conversation, way, accept=False)
        assert there(harness, way) == []
        found = await events(conversation)
        (note,) = notes(found)
        assert note == (
            "The agent tried to run `touch a` in a terminal of Ostler's, although that was rejected. "
            "Ostler refused it."
        )
        answered = [r["message"].get("error") for r in harness.log.records("received")]
        assert [each["code"] for each in answered if each] == [-32000]
        # From now on the agent is answered in the way that it does not take for a yes.
        await answer_all(conversation, way, accept=False)
        assert outcomes(harness)[-1] == {"outcome": "cancelled"}
        assert len(notes(await events(conversation))) == 1
        rejections = [e for e in await events(conversation) if e["kind"] == "UserRejectObservation"]
        assert [each["rejection_reason"] for each in rejections] == ["not that", "not that"]
        # What is asked for again, and allowed, runs; and what was rejected in an earlier turn may.
        await answer_all(conversation, way, accept=True)
        assert there(harness, way) == ["a"]


async def test_an_agent_that_is_known_to_take_a_no_for_a_yes_is_answered_otherwise(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("name=iac-code", confirmation_policy=ALWAYS)
        way = Way("!as-iac-code-writes a text", ("a",), kind="edit")
        await answer_all(conversation, way, accept=False)
        assert outcomes(harness) == [{"outcome": "cancelled"}]
        assert there(harness, way) == []
        found = await events(conversation)
        each_call_once(found, way)
        assert notes(found) == []
        (told,) = [each for each in states(found, "permission_request") if each["status"] != "waiting"]
        assert (told["status"], told["by"]) == ("rejected", "person")


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("rejected", "tried", "refused"),
    [
        ("!write made.txt text", "!fswrite made.txt text", True),
        ("!write made.txt text", "!fswrite other.txt text", False),
        ("!perm", "!terminal rm -rf build", True),
        ("!perm", "!terminal /bin/echo rm", False),
    ],
)
async def test_what_was_rejected_is_refused_in_its_turn(
    tmp_path: Path, rejected: str, tried: str, refused: bool
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, f"{rejected}\n{tried}")
        await conversation.respond(False, "no")
        await settled(conversation)
        found = await events(conversation)
        assert ["although that was rejected" in note for note in notes(found)] == [True] * refused
        await turn(conversation, tried)
        assert len(notes(await events(conversation))) == refused  # another turn is another word


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_what_a_heedless_agent_did_itself_is_told(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        way = Way("!as-iac-code-writes a text", ("a",), kind="edit")
        await answer_all(conversation, way, accept=False)
        assert there(harness, way) == ["a"]  # with its own hands
        found = await events(conversation)
        each_call_once(found, way)
        (note,) = notes(found)
        assert note == (
            "The agent reports `write_file` as completed, although it was rejected. "
            "Look at what it has done. It says: Successfully wrote 1 lines to a"
        )
        (harness.root / "workspace" / "a").unlink()
        await answer_all(conversation, way, accept=False)
        assert there(harness, way) == []


CLAIMS = {
    "rejected": {
        "status": "completed",
        "content": [
            {"type": "content", "content": {"type": "text", "text": "The tool use was rejected (eg.)"}}
        ],
    },
    "not executed": {"status": "completed", "rawOutput": "Not executed: permission denied."},
    "skipped": {"status": "completed", "rawOutput": {"output": "Skipped."}},
    "no word": {"status": "completed"},
    "failed": {"status": "failed", "_meta": {"terminal_output": {"data": "The tool use was rejected"}}},
}
"""What an agent may report of calls that it did not run."""


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("claim", CLAIMS)
async def test_words_alone_accuse_no_agent_of_having_run_what_was_rejected(
    tmp_path: Path, claim: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        for number in (1, 2):
            await asked(conversation, f"!as-claims {json.dumps(CLAIMS[claim])}")
            await conversation.respond(False, "not that")
            assert await settled(conversation) == "finished"
            found = await events(conversation)
            assert [note for note in notes(found) if "although" in note or "without asking" in note] == []
            said = [note for note in notes(found) if "Nothing shows that it ran." in note]
            assert len(said) == (0 if claim == "failed" else number)
            assert not conversation.record.heedless
            assert outcomes(harness)[-1] == {"outcome": "selected", "optionId": "no"}
            assert "unasked" not in conversation.record.reported.agent_state.get("confirmation", {})


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    "shown",
    [
        {"rawOutput": {"exit_code": 0}},
        {"_meta": {"terminal_output_delta": {"data": "removed it"}}},
        {"_meta": {"terminal_output": {"data": "removed it"}}},
    ],
    ids=["exit status", "output", "output as a whole"],
)
async def test_what_shows_that_a_rejected_call_ran_is_reported(tmp_path: Path, shown: dict[str, Any]) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, f"!as-claims {json.dumps({'status': 'completed', **shown})} rm x")
        await conversation.respond(False, "not that")
        assert await settled(conversation) == "finished"
        first, second = notes(await events(conversation))
        assert first.startswith("The agent reports `rm x` as completed, although it was rejected. Look at")
        assert second.startswith("The agent ran `rm x` without asking")
        assert conversation.record.heedless


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_rejected_edit_whose_file_is_as_it_was_accuses_no_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        path = tmp_path / "workspace" / "a"
        path.parent.mkdir(exist_ok=True)
        path.write_text("as it was")
        await asked(conversation, f"!as-claims-edit {path}")
        await conversation.respond(False, "not that")
        assert await settled(conversation) == "finished"
        (note,) = notes(await events(conversation))
        assert "which was rejected. Nothing shows that it ran. It says:" in note
        assert note.endswith("Skipped.")
        assert not conversation.record.heedless


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_an_agent_that_heeds_a_no_gets_options_again_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        option, cancelled = "selected", "cancelled"
        known = []
        for _ in range(6):
            await answer_all(conversation, WAYS["iac-code"], accept=False)
            record = conversation.record
            known.append((outcomes(harness)[-1]["outcome"], record.heedless, record.pardoned))
            assert there(harness, WAYS["iac-code"]) == []
        assert known == [
            (option, True, False),
            (cancelled, False, True),
            (option, True, True),
            (cancelled, True, True),
            (cancelled, True, True),
            (cancelled, True, True),
        ]
        child = await harness.supervisor.start_child(conversation.id, "hello", title=None, worktree=None)
        await settled(child)
        assert child.record.pardoned


async def test_a_no_that_is_withdrawn_or_cut_off_pardons_no_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await answer_all(conversation, WAYS["iac-code"], accept=False)
        await asked(conversation, WAYS["iac-code"].text)
        await conversation.interrupt()
        await turn(conversation, "hello")
        await asked(conversation, f"{WAYS['iac-code'].text}\n!hang")
        await conversation.respond(False, "no")
        await until(lambda: outcomes(harness)[-1] == {"outcome": "cancelled"}, "the answer")
        await conversation.interrupt()
        assert conversation.record.heedless


# -- what ran unasked ----------------------------------------------------------------------------------------

NO_MODE = "Configure the agent to ask: it offers no mode that is known to ask for such calls."
IN_VAIN = "Configure the agent to ask: the mode that is known to ask does not ask for such calls."


@pytest.mark.parametrize(
    ("modes", "settings", "advice"),
    [
        pytest.param("low,high", {"acp_session_mode": "high"}, NO_MODE, id="levels of thought (Pi)"),
        pytest.param("low,high", {}, NO_MODE, id="levels of thought, none of which is set"),
        pytest.param(
            "yolo,default",
            {"acp_session_mode": "yolo"},
            "Its settings keep it in the mode `yolo`: without `acp_session_mode` Ostler chooses what asks.",
            id="another mode asks",
        ),
        pytest.param("yolo,default", {"acp_session_mode": "default"}, IN_VAIN, id="its mode should ask"),
        pytest.param("yolo,default", {}, IN_VAIN, id="Ostler's choice should ask"),
    ],
)
async def test_what_would_help_is_what_the_agent_has(
    tmp_path: Path, modes: str, settings: dict[str, str], advice: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(
            f"mode-names={modes}", confirmation_policy=ALWAYS, settings=settings
        )
        await turn(conversation, "!as-hermes touch q")
        (note,) = notes(await events(conversation))
        assert advice in note


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_each_kind_of_tool_is_told_of_by_itself_and_can_come_back(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("mode-names=default", confirmation_policy=ALWAYS)
        await turn(conversation, "!as-hermes touch q")
        state = conversation.record.reported.agent_state["confirmation"]
        assert (state["asks"], state["kinds"]) == (True, {"execute": False})
        assert state["unasked"]["title"] == "terminal: touch q"
        (note,) = notes(await events(conversation))
        assert "assume that calls of this kind are not confirmed" in note
        await turn(conversation, "!as-hermes touch q\n!tool edit b\n!tool edit c")
        assert conversation.record.reported.agent_state["confirmation"]["kinds"] == {
            "execute": False,
            "edit": False,
        }
        assert len(notes(await events(conversation))) == 2
        await answer_all(conversation, WAYS["hermes"], accept=True)
        state = conversation.record.reported.agent_state["confirmation"]
        assert (state["asks"], state["kinds"]) == (True, {"execute": True, "edit": False})
        assert "unasked" not in state  # it was a command
        assert states(await events(conversation), "confirmation")[-1] == state
        await turn(conversation, "!as-hermes touch q")
        assert conversation.record.reported.agent_state["confirmation"]["kinds"]["execute"] is False
        assert len(notes(await events(conversation))) == 2  # said once of each kind


async def test_a_call_that_failed_is_not_known_to_have_run(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        found = await turn(conversation, "!failtool")
        assert notes(found) == []
        assert all("unasked" not in each for each in states(found, "confirmation"))


# -- input that comes late -----------------------------------------------------------------------------------


def told_input(found: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(each["action_id"], each["input"]) for each in states(found, "action_input")]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("vocabulary", "policy"), [(Vocabulary.CORE, {"kind": "NeverConfirm"}), (Vocabulary.EXTENDED, ALWAYS)]
)
async def test_input_that_comes_after_the_action_is_told(
    tmp_path: Path, vocabulary: Vocabulary, policy: dict[str, str]
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary, confirmation_policy=policy)
        found = await turn(conversation, "!as-qwen 3.6 touch a")
        (action,) = calls(found)
        assert action["action"]["data"] == {}
        assert told_input(found) == [(action["id"], {"command": "touch a"})]


async def test_a_question_that_comes_after_its_action_says_what_it_is_about(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await asked(conversation, "!as-qwen-asks 3.6 touch a")
        found = await events(conversation)
        (action,) = calls(found)
        assert (action["summary"], action["action"]["data"]) == ("Shell", {})
        question = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "agent"][-1]
        assert question["llm_message"]["content"][0]["text"] == "May I? touch a"
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert told_input(await events(conversation)) == [(action["id"], {"command": "touch a"})]


async def test_input_that_comes_in_time_is_told_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=Vocabulary.CORE)
        found = await turn(conversation, "!as-qwen 0 touch a")
        (action,) = calls(found)
        assert action["action"]["data"] == {"command": "touch a"}
        assert told_input(found) == []


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@BOTH
async def test_a_command_whose_input_never_comes_is_that_of_ostlers_terminal(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary)
        found = await turn(conversation, "!as-iac-code touch a")
        if vocabulary is Vocabulary.CORE:
            (action,) = calls(found)
            assert told_input(found) == [(action["id"], {"command": "touch a"})]
        else:
            last = [e for e in found if e["kind"] == "ACPToolCallEvent"][-1]
            assert last["raw_input"] == {"command": "touch a"}


async def test_an_action_without_input_has_the_words_of_the_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=Vocabulary.CORE)
        (action,) = calls(await turn(conversation, "!as-hermes touch a"))
        assert "$ touch a" in json.dumps(action["action"]["data"])


@pytest.mark.parametrize("named", [None, "n"])
async def test_a_no_to_a_heedless_agent_is_cancelled_also_if_its_option_is_named(
    tmp_path: Path, named: str | None
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("name=iac-code", confirmation_policy=ALWAYS)
        (request,) = await asked(conversation, "!as-iac-code-writes a text")
        option = next(each["id"] for each in request["options"] if each["kind"] == "reject_once")
        await conversation.respond(False, "no", request["id"], named and option)
        assert await settled(conversation) == "finished"
        assert outcomes(harness) == [{"outcome": "cancelled"}]
        (told,) = [e for e in states(await events(conversation), "permission_request") if e["by"]]
        assert (told["status"], told["reason"]) == ("rejected", "no")


async def test_an_agent_that_takes_a_no_for_a_yes_is_remembered_as_that(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await answer_all(conversation, WAYS["iac-code"], accept=False)
        await conversation.log.flushed()
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        await answer_all(conversation, WAYS["iac-code"], accept=False)
        assert outcomes(harness)[-1] == {"outcome": "cancelled"}


async def test_what_is_known_of_an_agent_holds_for_forks_and_children(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start(confirmation_policy=ALWAYS)
        await answer_all(source, WAYS["iac-code"], accept=False)
        await turn(source, "!as-hermes touch q")
        known = source.record.reported.agent_state["confirmation"]
        assert source.record.heedless
        assert False in known["kinds"].values()
        early = next(each["id"] for each in await events(source) if each["kind"] == "MessageEvent")
        whole = await harness.supervisor.fork(source.id, ForkRequest())
        cut = await harness.supervisor.fork(source.id, ForkRequest(from_event_id=early))
        child = await harness.supervisor.start_child(source.id, "hello", title=None, worktree=None)
        await settled(child)
        assert all(each.record.heedless for each in (whole, cut, child))
        assert whole.info()["agent_state"]["confirmation"] == known
        assert "confirmation" not in cut.info()["agent_state"]  # which has not been told so
