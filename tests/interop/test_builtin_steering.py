"""How people, policies, hooks and limits steer the built-in agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.builtin_program import (
    HANGS_SECONDS,
    Refused,
    Session,
    agent,
    call,
    calls,
    finish,
    llm,
    reject,
    says,
    status,
    text_of,
)
from tests.interop.model_api.script import Answer
from tests.interop.model_api.server import ModelApi

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="every-event-can-be-read")]

ALWAYS = {"kind": "AlwaysConfirm"}
PREDICTED = {"kind": "LLMSecurityAnalyzer"}


def echo(word: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "terminal", {"command": f"echo {word}", **more}


def condensing(api: ModelApi, **fields: Any) -> dict[str, Any]:
    return {"kind": "LLMSummarizingCondenser", "llm": llm(api, usage_id="condenser"), **fields}


# -- confirmation
def test_several_actions_are_confirmed_at_once(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"), confirmation_policy=ALWAYS)
    model_api.answers.extend([calls(echo("one"), echo("two")), says("done")])
    assert status(session.say("echo")) == "finished"
    actions = session.of("ActionEvent")
    asked = {one["toolCall"]["_meta"]["ostler"]["eventId"]: one["toolCall"] for one in session.asked}
    assert set(asked) == {action["id"] for action in actions}
    assert asked[actions[0]["id"]]["rawInput"]["command"] == "echo one"
    assert [text_of(event["observation"]["content"])[:3] for event in session.of("ObservationEvent")] == [
        "one",
        "two",
    ]


def test_a_rejection_has_a_reason(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"), confirmation_policy=ALWAYS)
    session.decide = reject("not today")
    model_api.answers.append(calls(echo("one"), echo("two")))
    answer = session.say("echo")
    assert (answer["stopReason"], status(answer)) == ("end_turn", "idle")
    rejected = session.of("UserRejectObservation")
    assert [each["rejection_reason"] for each in rejected] == ["not today"] * 2
    assert [each["rejection_source"] for each in rejected] == ["user"] * 2
    assert session.of("ObservationEvent") == []
    model_api.answers.append(says("well"))
    assert status(session.say("go on")) == "finished"


@pytest.mark.parametrize(("risk", "asked"), [("LOW", 0), ("HIGH", 1)])
def test_a_risk_that_the_model_predicts(session: Session, model_api: ModelApi, risk: str, asked: int) -> None:
    policy = {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True}
    session.open(agent(model_api, "terminal"), confirmation_policy=policy, security_analyzer=PREDICTED)
    model_api.answers.extend([calls(echo("one", security_risk=risk)), says("done")])
    session.say("echo")
    assert session.of("ActionEvent")[0]["security_risk"] == risk
    assert len(session.asked) == asked
    (analysis,) = session.of("SecurityAnalysisEvent")
    assert (analysis["analyzer"], analysis["policy"]) == ("LLMSecurityAnalyzer", "ConfirmRisky")
    assert list(analysis["risks"].values()) == [risk]


def test_a_risk_that_an_analyzer_finds(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    policy = {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": False}
    session.ask(
        "_ostler/configure", confirmation_policy=policy, security_analyzer={"kind": "PatternSecurityAnalyzer"}
    )
    session.decide = reject("too dangerous")
    model_api.answers.append(call("terminal", command="rm -rf / --no-preserve-root"))
    assert status(session.say("clean up")) == "idle"
    assert session.last("UserRejectObservation")["rejection_reason"] == "too dangerous"
    session.ask("_ostler/configure", confirmation_policy={"kind": "NeverConfirm"}, security_analyzer=None)
    model_api.answers.extend([calls(echo("fine")), says("done")])
    assert status(session.say("echo")) == "finished"
    assert len(session.asked) == 1


# -- hooks
def hook(name: str, command: str, matcher: str = "*") -> dict[str, Any]:
    return {name: [{"matcher": matcher, "hooks": [{"type": "command", "command": command, "timeout": 20}]}]}


def test_hooks_of_every_kind(session: Session, model_api: ModelApi) -> None:
    log = session.workspace.parent / "hooks.log"
    names = ["session_start", "user_prompt_submit", "pre_tool_use", "post_tool_use", "stop", "session_end"]
    hooks: dict[str, Any] = {}
    for name in names:
        hooks |= hook(name, f"echo {name} >> {log}")
    session.open(agent(model_api, "terminal"), hook_config=hooks)
    model_api.answers.extend([calls(echo("one")), says("done")])
    assert status(session.say("echo")) == "finished"
    session.ask("session/close")
    assert list(dict.fromkeys(log.read_text().split())) == names
    told = [event["hook_event_type"] for event in session.of("HookExecutionEvent")]
    in_words = ["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"]
    assert list(dict.fromkeys(told)) == in_words
    session.open(agent(model_api, "terminal"), load=True)  # for the fixture to close


def test_a_hook_blocks_a_tool(session: Session, model_api: ModelApi) -> None:
    hooks = hook("pre_tool_use", "echo 'not allowed here' >&2; exit 2", "terminal")
    session.open(agent(model_api, "terminal"), hook_config=hooks)
    model_api.answers.extend([calls(echo("one")), says("then not")])
    assert status(session.say("echo")) == "finished"
    rejected = session.last("UserRejectObservation")
    assert rejected["rejection_source"] == "hook"
    assert "not allowed here" in rejected["rejection_reason"]
    assert rejected["action_id"] == session.of("ActionEvent")[0]["id"]
    blocked = [state.value for state in session.states if state.key == "blocked_actions"]
    assert blocked[0].keys() == {rejected["action_id"]}
    assert blocked[-1] == {}


def test_a_hook_blocks_a_message(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api), hook_config=hook("user_prompt_submit", "exit 2"))
    assert status(session.say("hello")) == "finished"
    assert model_api.calls == []


def test_a_hook_does_not_let_it_stop(session: Session, model_api: ModelApi) -> None:
    once = session.workspace / "once"
    hooks = hook("stop", f"[ -e {once} ] || {{ touch {once}; echo 'test first' >&2; exit 2; }}")
    session.open(agent(model_api), hook_config=hooks)
    model_api.answers.extend([says("done"), says("tested, done")])
    assert status(session.say("work")) == "finished"
    assert "test first" in text_of(session.of("MessageEvent")[-2]["llm_message"]["content"])
    assert session.kinds[-1] == "HookExecutionEvent" or session.kinds.count("agent says") == 2


# -- condensation
def test_the_history_is_condensed_at_a_limit(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal", condenser=condensing(model_api, max_size=8, keep_first=1)))
    steps = [calls(echo(f"word{number}")) for number in range(4)]
    model_api.answers.extend([*steps, says("Words were echoed."), says("done")])
    assert status(session.say("echo")) == "finished"
    condensation = session.last("Condensation")
    assert condensation["summary"] == "Words were echoed."
    assert set(condensation["forgotten_event_ids"]) <= {event["id"] for event in session.events}
    assert "Words were echoed." in str(model_api.calls[-1].body["messages"])
    assert "word0" not in str(model_api.calls[-1].body["messages"])


def test_the_history_is_condensed_on_request(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal", condenser=condensing(model_api, max_size=80, keep_first=1)))
    model_api.answers.extend([*[calls(echo(f"word{number}")) for number in range(3)], says("done")])
    session.say("echo")
    model_api.answers.append(says("Three words."))
    session.ask("_ostler/condense")
    assert session.kinds[-2:] == ["CondensationRequest", "Condensation"]
    assert session.last("Condensation")["summary"] == "Three words."


def test_nothing_condenses_without_a_condenser(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    with pytest.raises(Refused, match="No condenser configured") as refused:
        session.ask("_ostler/condense")
    assert refused.value.code == -32602


def test_the_history_is_condensed_when_it_is_too_long(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal", condenser=condensing(model_api, max_size=80, keep_first=1)))
    overflow = Answer(
        status=400, message="This model's maximum context length is 8192 tokens. context_length_exceeded"
    )
    steps = [calls(echo(f"word{number}")) for number in range(3)]
    model_api.answers.extend([*steps, overflow, says("Three words."), says("done")])
    assert status(session.say("echo")) == "finished"
    assert session.kinds[-3:] == ["CondensationRequest", "Condensation", "agent says"]


def test_actions_that_wait_are_not_run_by_condensing(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal", condenser=condensing(model_api)), confirmation_policy=ALWAYS)
    session.decide = lambda _: {}
    model_api.answers.append(call("terminal", command="touch run"))
    answer = session.saying("touch")
    session.until(lambda: len(session.asked) == 1)
    with pytest.raises(Refused, match="confirmation"):
        session.ask("_ostler/condense")
    session.cancel()
    assert answer(20)["stopReason"] == "cancelled"
    assert not (session.workspace / "run").exists()


# -- limits
def test_a_loop_is_stuck(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    model_api.answers.extend([calls(echo("again"))] * 10)
    assert status(session.say("echo")) == "stuck"
    assert session.kinds.count("TerminalAction") < 10
    model_api.answers.clear()
    model_api.answers.append(says("well"))
    assert status(session.say("do something else")) == "finished"


def test_iterations_and_budget_end(session: Session, model_api: ModelApi, tmp_path: Path) -> None:
    session.open(agent(model_api, "terminal"), max_iterations=2)
    model_api.answers.extend([calls(echo(f"word{number}")) for number in range(3)])
    assert status(session.say("echo")) == "error"
    assert session.last("ConversationErrorEvent")["code"] == "MaxIterationsReached"
    model_api.answers.clear()

    other = Session(session.program, tmp_path)
    model = llm(model_api, input_cost_per_token=1.0, output_cost_per_token=1.0)
    other.open(agent(model_api, "terminal", model=model), max_budget_per_run=50.0)
    model_api.answers.extend([calls(echo("one")), calls(echo("two"))])
    assert status(other.say("echo")) == "error"
    assert other.last("ConversationErrorEvent")["code"] == "MaxBudgetReached"
    other.close()


def test_a_critic_asks_for_more(session: Session, model_api: ModelApi) -> None:
    critic = {
        "kind": "AgentFinishedCritic",
        "iterative_refinement": {"success_threshold": 0.5, "max_iterations": 1},
    }
    session.open(agent(model_api, critic=critic))
    model_api.answers.extend([finish("first"), finish("second")])
    assert status(session.say("work")) == "finished"
    first, second = session.of("ActionEvent")
    assert (first["critic_result"]["score"], second["critic_result"]["score"]) == (0.0, 0.0)
    followup = session.events[session.events.index(second) - 1]
    assert (followup["kind"], followup["source"]) == ("MessageEvent", "user")


# -- skills
def test_skills_and_instructions_of_the_project(session: Session, model_api: ModelApi) -> None:
    (session.workspace / "AGENTS.md").write_text("Always speak of the otter.")
    place = session.workspace / ".agents" / "skills" / "counting"
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text("---\nname: counting\ndescription: How to count\n---\nCount from zero.\n")
    skill = {
        "name": "greeting",
        "content": "Say ahoy.",
        "trigger": {"type": "keyword", "keywords": ["sailor"]},
    }
    context = {"skills": [skill], "load_project_skills": True}
    session.open(agent(model_api, agent_context=context))
    model_api.answers.extend([call("invoke_skill", name="counting"), says("ahoy")])
    assert status(session.say("hello sailor")) == "finished"
    assert "Always speak of the otter." in str(session.last("SystemPromptEvent"))
    said = session.of("MessageEvent")[0]
    assert said["activated_skills"] == ["greeting"]
    assert "Say ahoy." in text_of(said["extended_content"])
    states = {state.key: state.value for state in session.states}
    assert states["activated_knowledge_skills"] == ["greeting"]
    assert "Count from zero." in text_of(session.observed()["content"])
    assert states["invoked_skills"] == ["counting"]


# -- a pause
def test_a_pause_lets_the_step_end(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    wait = call("terminal", command="touch began; until [ -e go ]; do sleep 0.05; done; echo went")
    model_api.answers.extend([wait, says("done")])
    answer = session.saying("wait")
    session.until((session.workspace / "began").exists)
    pausing = session.program.start("_ostler/pause", sessionId=session.id)
    (session.workspace / "go").touch()
    assert pausing() == {}
    assert answer(HANGS_SECONDS) == {"stopReason": "end_turn", "_meta": {"ostler": {"status": "paused"}}}
    assert session.kinds[2:] == ["TerminalAction", "TerminalObservation"]
    assert status(session.saying(None)(HANGS_SECONDS)) == "finished"
    assert session.kinds[4:] == ["agent says"]


# -- branches
def test_it_continues_from_another_event(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.extend([says("first answer"), says("second answer"), says("third answer")])
    session.say("one")
    first = session.last("MessageEvent")
    session.say("two")
    session.ask("_ostler/navigate", event_id=first["id"])
    session.say("three")
    sent = str(model_api.calls[-1].body["messages"])
    assert ("first answer" in sent, "second answer" in sent) == (True, False)
    with pytest.raises(Refused, match="Unknown event_id"):
        session.ask("_ostler/navigate", event_id="0198f2a0-0000-7000-8000-00000000dead")


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_a_fork_does_not_run_again_what_had_run(
    session: Session, model_api: ModelApi, tmp_path: Path
) -> None:
    session.open(agent(model_api, "terminal"))
    model_api.answers.extend([call("terminal", command="echo ran >> runs"), says("done")])
    session.say("run")
    action = session.of("ActionEvent")[0]
    fork = Session(session.program, tmp_path)
    made = session.ask(
        "session/fork",
        cwd=str(session.workspace),
        _meta={"ostler": {"conversation_id": fork.id, "from_event_id": action["id"]}},
    )
    assert made == {"sessionId": fork.id}
    fork.open(agent(model_api, "terminal"), load=True)
    model_api.answers.append(says("forked"))
    assert status(fork.say("and now?")) == "finished"
    assert (session.workspace / "runs").read_text() == "ran\n"
    assert fork.kinds == ["AgentErrorEvent", "user says", "agent says"]
    fork.close()
