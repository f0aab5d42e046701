"""The built-in agent with the APIs of the providers: what they think, and what is logged of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.acp.schema.extension import ItemAborted, ItemDelta, ItemStarted
from tests.interop.builtin_program import (
    KEY,
    Session,
    agent,
    call,
    calls,
    finish,
    llm,
    says,
    status,
    text_of,
)
from tests.interop.model_api.server import ModelApi

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="every-event-can-be-read")]


def anthropic(api: ModelApi, **fields: Any) -> dict[str, Any]:
    return llm(api, model="anthropic/claude-sonnet-4-5", base_url=api.url, **fields)


def responses(api: ModelApi, **fields: Any) -> dict[str, Any]:
    return llm(api, model="openai/gpt-5.1-codex", **fields)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_anthropic_thinks(session: Session, model_api: ModelApi, stream: bool) -> None:
    session.open(agent(model_api, "terminal", model=anthropic(model_api, stream=stream)))
    think = calls(
        ("terminal", {"command": "echo seen"}), thoughts=("I think ", "first."), redacted="ZW5jcnlwdGVk"
    )
    model_api.answers.extend([think, says("It was seen.")])
    assert status(session.say("think")) == "finished"
    blocks = session.of("ActionEvent")[0]["thinking_blocks"]
    assert {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"} in blocks
    assert {"type": "thinking", "thinking": "I think first.", "signature": "dGVzdA=="} in blocks
    again = model_api.calls[-1].body["messages"]  # the provider has them back, as it gave them
    sent = [part for message in again if message["role"] == "assistant" for part in message["content"]]
    assert [part["type"] for part in sent] == ["thinking", "redacted_thinking", "tool_use"]
    assert sent[0]["signature"] == "dGVzdA=="
    assert model_api.calls[-1].key == KEY


@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses_have_reasoning_items(session: Session, model_api: ModelApi, stream: bool) -> None:
    model = responses(model_api, stream=stream, log_completions=True)
    session.open(agent(model_api, "terminal", model=model))
    reason = calls(("terminal", {"command": "echo seen"}), thoughts=("Reasons.",), encrypted="CIPHERED-7")
    model_api.answers.extend([reason, says("It was seen.")])
    assert status(session.say("think")) == "finished"
    assert model_api.calls[-1].path.endswith("/responses")
    item = session.of("ActionEvent")[0]["responses_reasoning_item"]
    assert item["summary"] == ["Reasons."]
    given_back = [item for item in model_api.calls[-1].body["input"] if item.get("type") == "reasoning"]
    assert [item.get("encrypted_content") for item in given_back] == ["CIPHERED-7"]
    logs = session.of("LLMCompletionLogEvent")
    assert len(logs) == 2
    assert all("CIPHERED-7" not in log["log_data"] for log in logs)
    assert "CIPHERED-7" not in session.program.log.read_text()


MODELS = {
    "chat": lambda api: llm(api),
    "anthropic": lambda api: anthropic(api, stream=True),
    "responses": lambda api: responses(api, stream=True),
    "gemini": lambda api: llm(api, model="gemini/gemini-2.5-pro", base_url=f"{api.url}/v1beta"),
}


def streamed(session: Session, item_id: str) -> dict[str, str]:
    """What was streamed of an event in its last attempt, by kind."""
    texts: dict[str, str] = {}
    for item in session.items:
        if item.item_id != item_id or isinstance(item, ItemAborted):
            continue
        if isinstance(item, ItemStarted):
            texts.clear()
        else:
            texts[item.kind] = texts.get(item.kind, "") + item.content
    return texts


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@pytest.mark.parametrize("provider", MODELS)
def test_arguments_are_streamed_as_the_action_that_they_become(
    session: Session, model_api: ModelApi, provider: str
) -> None:
    session.open(agent(model_api, "terminal", model=MODELS[provider](model_api)))
    commands = [f"echo the {name} of several pieces, seen" for name in ("first", "second", "third")]
    model_api.answers.extend(
        [
            calls(*(("terminal", {"command": each}) for each in commands), thoughts=("I ", "look.")),
            says("It was ", "seen.", thoughts=("So.",)),
        ]
    )
    assert session.say("look")["_meta"]["ostler"]["status"] == "finished", session.events[-1]
    for action, command in zip(session.of("ActionEvent"), commands, strict=True):
        texts = streamed(session, action["id"])
        assert json.loads(texts.pop("arguments")) == {"command": command}
        summary = (action.get("responses_reasoning_item") or {}).get("summary") or []
        thoughts = action.get("reasoning_content") or "".join(summary)
        assert texts == ({"reasoning": thoughts} if thoughts else {})
        named = {
            (item.tool_call_id, item.tool_name)
            for item in session.items
            if isinstance(item, ItemDelta) and item.item_id == action["id"] and item.kind == "arguments"
        }
        assert named == {(action["tool_call_id"], "terminal")}
    told = streamed(session, session.last("MessageEvent")["id"])
    assert (told.pop("text"), set(told) <= {"reasoning"}) == ("It was seen.", True)
    assert not [item for item in session.items if isinstance(item, ItemAborted)]
    assert {item.attempt for item in session.items} == {1}


@pytest.mark.parametrize("provider", ["chat", "responses"])
def test_arguments_of_an_attempt_that_is_given_up(
    session: Session, model_api: ModelApi, provider: str
) -> None:
    model = {**MODELS[provider](model_api), "num_retries": 3, "retry_min_wait": 0, "retry_max_wait": 1}
    session.open(agent(model_api, "terminal", model=model))
    pair = [("terminal", {"command": f"echo {name}, of more pieces than one"}) for name in ("one", "two")]
    model_api.answers.extend([calls(*pair, fails_after=8), calls(pair[1]), says("seen")])
    assert session.say("look")["_meta"]["ostler"]["status"] == "finished", session.events[-1]
    (action,) = session.of("ActionEvent")
    assert json.loads(streamed(session, action["id"])["arguments"]) == pair[1][1]
    assert max(item.attempt for item in session.items if item.item_id == action["id"]) == 2
    ended = {action["id"], session.last("MessageEvent")["id"]}
    begun = {item.item_id for item in session.items} - ended
    assert len(begun) == 1
    aborted = [(item.item_id, item.reason) for item in session.items if isinstance(item, ItemAborted)]
    assert aborted == [(begun.pop(), "retry")]


def test_gemini(session: Session, model_api: ModelApi) -> None:
    model = llm(model_api, model="gemini/gemini-2.5-pro", base_url=f"{model_api.url}/v1beta")
    session.open(agent(model_api, "terminal", model=model))
    model_api.answers.extend([call("terminal", command="echo seen"), says("It was ", "seen.")])
    assert session.say("look")["_meta"]["ostler"]["status"] == "finished", session.events[-1]
    assert "GenerateContent" in model_api.calls[-1].path
    assert session.kinds[2:] == ["TerminalAction", "TerminalObservation", "agent says"]
    assert text_of(session.last("MessageEvent")["llm_message"]["content"]) == "It was seen."


def test_completions_are_logged_without_secrets(session: Session, model_api: ModelApi) -> None:
    model = llm(model_api, log_completions=True, stream=False)
    session.open(agent(model_api, "terminal", model=model), secrets={"TOKEN": "very-secret-42"})
    model_api.answers.extend([call("terminal", command="echo $TOKEN; echo very-secret-42"), finish()])
    session.say("say the token very-secret-42")
    assert "<secret-hidden>" in text_of(session.of("ObservationEvent")[0]["observation"]["content"])
    logs = session.of("LLMCompletionLogEvent")
    assert [log["usage_id"] for log in logs] == ["agent"] * 2
    assert all(log["filename"].endswith(".json") and json.loads(log["log_data"])["response"] for log in logs)
    assert all("very-secret-42" not in log["log_data"] and KEY not in log["log_data"] for log in logs)
    assert not list(session.program.home.rglob("*completions*"))  # in no file


def test_tokens_have_ids(session: Session, model_api: ModelApi) -> None:
    model = llm(
        model_api, model="hosted_vllm/test", stream=False, litellm_extra_body={"return_token_ids": True}
    )
    session.open(agent(model_api, model=model))
    model_api.answers.append(says("counted", token_ids=(7, 8)))
    session.say("count")
    told = session.last("TokenEvent")
    assert (told["prompt_token_ids"], told["response_token_ids"]) == ([1, 2, 3], [7, 8])


def test_models_are_switched(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(says("one"))
    session.say("one")
    session.ask("_ostler/configure", llm=anthropic(model_api, usage_id="other", api_key="sk-other-key"))
    model_api.answers.append(says("two"))
    session.say("two")
    assert [call.path.rpartition("/")[2] for call in model_api.calls] == ["completions", "messages"]
    assert model_api.calls[-1].key == "sk-other-key"
    told = [state.value for state in session.states if state.key == "agent"][-1]
    assert told["llm"]["model"] == "anthropic/claude-sonnet-4-5"
    assert "sk-other-key" not in json.dumps(told)
    stats = [state.value for state in session.states if state.key == "stats"]
    assert set(stats[-1]["usage_to_metrics"]) == {"agent", "other"}


def test_questions_and_titles_are_no_events(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(says("hello"))
    session.say("hello")
    before = list(session.events)
    model_api.answers.append(says("forty-two"))
    assert session.ask("_ostler/ask", question="What is the answer?") == {"response": "forty-two"}
    model_api.answers.append(says("A greeting"))
    assert session.ask("_ostler/title") == {"title": "A greeting"}
    assert session.events == before
