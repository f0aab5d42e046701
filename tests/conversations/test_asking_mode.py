"""Which of an agent's modes is taken for one that asks: by the words that real agents have for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.acp import Result, parse_session
from supervisor.conversations.agent.asking_mode import Manner, Setting, ask_first, find, manner
from supervisor.conversations.agent.options import note_option
from supervisor.conversations.agent.session_setup import Session
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.status import Memory
from supervisor.events import Vocabulary
from supervisor.settings.agent import AgentSettings


@pytest.mark.parametrize(
    ("mode", "name", "told", "expected"),
    [
        # Claude Code
        ("default", "Manual", "Always ask before making changes", Manner.ASKS),
        ("acceptEdits", "Accept edits", "Automatically accept all file edits", Manner.ACTS),
        ("bypassPermissions", "Bypass", "Skips all permission prompts", Manner.ACTS),
        ("plan", "Plan", "Create a plan before making changes", Manner.TALKS),
        ("auto", "Auto", "Claude handles permission decisions", Manner.ACTS),
        ("dontAsk", "Don't Ask", None, Manner.ACTS),
        # Codex
        (
            "read-only",
            "Read-only",
            "Requires approval to edit files and access the internet.",
            Manner.ASKS_TALKING,
        ),
        (
            "workspace-write",
            "Workspace access",
            "Edit workspace files; ask before writing outside the workspace or accessing the network.",
            Manner.ASKS_PARTLY,
        ),
        ("agent", "Auto review", "Only ask for actions detected as potentially unsafe", Manner.ACTS),
        ("agent-full-access", "Full access", "Unrestricted access to the internet", Manner.ACTS),
        # Gemini CLI, Qwen Code
        ("default", "Default", "Prompts for approval", Manner.ASKS),
        ("autoEdit", "Auto Edit", "Auto-approves edit tools", Manner.ACTS),
        ("yolo", "YOLO", "Auto-approves all tools", Manner.ACTS),
        # Mistral Vibe
        ("default", "Default", "Requires approval for tool executions", Manner.ASKS),
        ("auto-approve", "Auto Approve", "Auto-approves all tool executions", Manner.ACTS),
        ("accept-edits", "Accept Edits", "Auto-approves file edits only", Manner.ACTS),
        # Auggie
        ("default", "Default", "Agent mode: Full access to modify and interact with code", Manner.ACTS),
        ("ask", "Ask", "Ask a question: Get answers without modifying code", Manner.TALKS),
        # a usual name says something where nothing else does
        ("default", "Default", None, Manner.ASKS),
        ("default", "Default", "The standard behaviour", Manner.UNKNOWN),
        # goose, Cursor, OpenCode
        ("approve", "Approve", "Ask before every tool call", Manner.ASKS),
        ("chat", "Chat", "Chat only, no tool calls", Manner.TALKS),
        ("ask", "Ask", "Q&A mode, no edits or command execution", Manner.TALKS),
        ("build", "build", "The default agent. Executes tools based on permissions.", Manner.UNKNOWN),
        # words that mean the opposite
        ("fast", "Fast", "Works without asking for approval", Manner.UNKNOWN),
        ("careful", "Careful", "Asks before each command", Manner.ASKS),
    ],
)
def test_a_mode_is_known_by_its_words(mode: str, name: str, told: str | None, expected: Manner) -> None:
    assert manner(mode, name, told) is expected


def modes(current: str, *ids: str) -> dict[str, object]:
    return {"currentModeId": current, "availableModes": [{"id": each, "name": each} for each in ids]}


def option(option_id: str, current: str, *values: str, category: str | None = None) -> dict[str, object]:
    choices = [{"value": value, "name": value} for value in values]
    fields = {
        "id": option_id,
        "name": option_id,
        "type": "select",
        "currentValue": current,
        "options": choices,
    }
    return fields if category is None else {**fields, "category": category}


CODEX = {
    "configOptions": [
        {
            **option("mode", "workspace-write", category="mode"),
            "options": [
                {"value": "read-only", "name": "Read", "description": "Requires approval to edit files."},
                {"value": "workspace-write", "name": "W", "description": "Ask before writing outside."},
            ],
        }
    ]
}


def test_the_setting_is_that_of_the_session() -> None:
    older = parse_session({"modes": modes("accept-edits", "plan", "accept-edits", "default")})
    assert find(older, everything=True).settings == [Setting(None, "default")]
    newer = parse_session({"configOptions": [option("mode", "yolo", "yolo", "default", category="mode")]})
    assert find(newer, everything=True).settings == [Setting("mode", "default")]
    assert find(parse_session({}), everything=True).settings == []
    codex = parse_session(CODEX)
    assert find(codex, everything=True).settings == [Setting("mode", "read-only")]
    assert find(codex, everything=False).settings == []
    assert find(codex, everything=False).asks


@pytest.mark.parametrize("listed_modes", [True, False])
async def test_what_is_told_of_asking_follows_the_options(listed_modes: bool) -> None:
    def session(approving: bool) -> Session:
        brave = {"id": "auto_approve", "name": "Auto", "type": "boolean", "currentValue": approving}
        given: dict[str, Any] = {"configOptions": [brave]}
        if listed_modes:
            given["modes"] = modes("default", "default")
        return Session("s", Memory.NEW, parse_session(given))

    class Agent:
        async def request(self, method: str, params: Any, *, timeout: float, on_response: Any) -> None:
            on_response(Result(None))

    holder: Any = SimpleNamespace(connection=Agent(), session=session(True))
    told = await ask_first(holder, Deadlines(), everything=True)
    assert (told["asks"], told["set"]) == (True, True)
    assert holder.session.result.config_options[0].current is False
    record = ConversationRecord(
        id="c",
        start=Start(
            working_dir="/",
            created_at="",
            vocabulary=Vocabulary.EXTENDED,
        ),
        agent=AgentSettings(),
        updated_at="",
        confirmation_policy={"kind": "AlwaysConfirm"},
    )
    record.reported.agent_state["confirmation"] = told
    for approving in (True, False):
        note_option(record, session(approving), "auto_approve", approving)
        assert record.reported.agent_state["confirmation"]["asks"] is not approving


def test_other_options_that_keep_an_agent_from_asking_are_set_too() -> None:
    brave = {"id": "auto_approve", "name": "Auto-approve", "type": "boolean", "currentValue": True}
    level = option("level", "never", "never", "on-request", category="approval")
    found = find(parse_session({"configOptions": [brave, level]}), everything=True)
    assert found.settings == [Setting("auto_approve", False), Setting("level", "on-request")]
    off = {**brave, "currentValue": False}
    assert find(parse_session({"configOptions": [off]}), everything=True).settings == []
