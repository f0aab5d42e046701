"""The walk that every client does with every agent: a text, a call that is rejected and one that is allowed,
an edit, another mode, a cancel; then a second process of the client loads the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.editors import acpx
from tests.interop.editors.clients import Agent, Client, text
from tests.interop.editors.subjects import Prompts
from tests.interop.npm import Packages

Update = Mapping[str, Any]


def walk(client: Client, agent: Agent, prompts: Prompts) -> str:
    """Walk, look at what came, and return the session's id."""
    spoken, said = prompts.text
    written, name = prompts.edit
    slowly, cancel_at = prompts.slow
    first = client.run(
        agent,
        {"do": "new"},
        {"do": "prompt", "text": spoken},
        {"do": "prompt", "text": prompts.tool, "answer": "reject"},
        {"do": "prompt", "text": prompts.tool},
        {"do": "prompt", "text": written},
        {"do": "mode", "mode": prompts.mode},
        {"do": "prompt", "text": slowly, "cancel_at": cancel_at},
    )
    (hello,) = first.answers("initialize")
    assert hello["protocolVersion"] == 1
    assert hello["agentCapabilities"]["loadSession"] is True
    answers = first.answers("prompt")
    assert [each["stopReason"] for each in answers if each is not answers[1]] == [
        "end_turn",
        "end_turn",
        "end_turn",
        "cancelled",
    ]
    assert said in text(first.updates(2))
    assert prompts.rejected in text(first.updates(3))
    assert prompts.allowed in text(first.updates(4))
    assert len(first.of("permission")) == prompts.asks, first.of("permission")
    assert agent.cwd / name in diffs(agent, first.updates(5)), first.updates(5)
    assert (agent.cwd / name).exists()
    assert len(first.answers("mode")) == 1

    second = client.run(agent, {"do": "load", "session": first.session}, {"do": "prompt", "text": spoken})
    history = second.updates(1)
    asked = text(history, "user_message_chunk")
    assert asked.count(slowly) == 1, asked
    assert asked.index(spoken) <= asked.index(prompts.tool) <= asked.index(slowly)
    assert said in text(history)
    assert prompts.allowed in text(history)
    if "modes" in first.answers("new")[0]:
        (loaded,) = second.answers("load")
        assert loaded["modes"]["currentModeId"] == prompts.mode
    assert second.answers("prompt")[0]["stopReason"] == "end_turn"
    assert said in text(second.updates(2))
    return first.session


def diffs(agent: Agent, updates: Sequence[Update]) -> set[Path]:
    """The files of which these show a diff."""
    return {
        agent.cwd / content["path"]
        for update in updates
        if update["sessionUpdate"] in ("tool_call", "tool_call_update")
        for content in update.get("content") or ()
        if content["type"] == "diff"
    }


def walk_with_acpx(packages: Packages, agent: Agent, prompts: Prompts) -> None:
    """The same with acpx, which resumes a session in place of loading it."""
    run = acpx.Acpx(packages, agent)
    try:
        _walk_with(run, agent, prompts)
    finally:
        run.forget()


def _walk_with(run: acpx.Acpx, agent: Agent, prompts: Prompts) -> None:
    spoken, said = prompts.text
    written, name = prompts.edit
    slowly, cancel_at = prompts.slow
    run("sessions", "new")
    answer = run("prompt", spoken)
    assert acpx.stop(answer) == "end_turn"
    assert said in text(acpx.updates(answer))
    rejected = run("--deny-all", "prompt", prompts.tool, status=acpx.DENIED)
    assert prompts.rejected in text(acpx.updates(rejected))
    allowed = run("--approve-all", "prompt", prompts.tool)
    assert prompts.allowed in text(acpx.updates(allowed))
    edited = run("--approve-all", "prompt", written)
    asked = [
        each for each in rejected + allowed + edited if each.get("method") == "session/request_permission"
    ]
    assert len(asked) == prompts.asks
    assert agent.cwd / name in diffs(agent, acpx.updates(edited)), edited
    assert (agent.cwd / name).exists()
    run("set-mode", prompts.mode)

    def begun(line: str) -> bool:
        return '"agent_message_chunk"' in line and cancel_at in line

    assert acpx.stop(run.prompt_until(slowly, begun, lambda: run("cancel"))) == "cancelled"
    run.forget()
    again = run("prompt", spoken)
    assert [each for each in again if each.get("method") in ("session/resume", "session/load")]
    assert said in text(acpx.updates(again))
