"""One scripted agent, once directly and once through `ostler acp`: the client gets the same.

What may differ stands in `DIFFERS`, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.interop.editors.behind import behind
from tests.interop.editors.clients import Agent, Client, Outcome
from tests.interop.model_api.server import ModelApi
from tests.support.scripted import scripted_command

pytestmark = pytest.mark.interop

PROMPTS = (
    "Hello you",
    "!think one two three\n!text An answer.\n!message m-1 Another message.\n!message m-2 And one more.",
    "!rich",
    "!plan completed in_progress pending",
    "!tool read Look\n!tools 3\n!failtool\n!streamtool a b c",
    "!diff notes.txt",
    "!perm",
    "!write notes.txt text",
    "!commands\n!title A title\n!usage 10 1000 0.5\n!mode plan\n!model large",
    "!unknown",
    "!notice careful\n!compaction",
    "!bigtool 20000",
    "!split 3",
    "!stop max_tokens",
)

Update = dict[str, Any]


DIFFERS = {
    "pieces": "pieces of a text or an output are joined in the journal, and can come as one",
    "initialize": "Ostler says what it can do, with any agent",
    "sessionId": "it is the id of the conversation, which all of its clients know",
    "title": "a conversation's title comes also when another client changes it: once more after the agent's",
    "vendor": "Ostler itself answers requests of an agent that ACP does not have",
    "usage": "the usage in the answer to a prompt has all members, with 0 where the agent has none",
}
"""What differs, and why."""

TITLES = (
    {"sessionUpdate": "session_info_update", "title": "Rich"},
    {"sessionUpdate": "session_info_update", "title": "A title"},
)
VENDOR = ("_vendor/question -> null ", "_vendor/question -> error -32601 Method not found: _vendor/question ")


def merged(updates: Sequence[Update]) -> list[Update]:
    """With consecutive pieces of one text, or of one output, as one."""
    found: list[Update] = []
    for update in updates:
        piece, before = _piece(update), _piece(found[-1]) if found else None
        if piece is not None and before is not None and _around(found[-1]) == _around(update):
            holder, name = before
            holder[name] += piece[0][piece[1]]
        else:
            found.append(deepcopy(update))
    return found


def _piece(update: Update) -> tuple[dict[str, Any], str] | None:
    """Where a piece is in an update: what holds it, and by which name; None if it is none."""
    content, delta = update.get("content"), (update.get("_meta") or {}).get("terminal_output_delta")
    if isinstance(content, dict) and content.get("type") == "text":
        return content, "text"
    return (delta, "data") if isinstance(delta, dict) else None


def _around(update: Update) -> Update:
    """All but the piece."""
    rest = deepcopy(update)
    holder, name = _piece(rest) or ({}, "")
    holder[name] = ""
    return rest


def lines(updates: Sequence[Update]) -> list[str]:
    """One for each update, to compare, without what may differ."""
    shown = [each for each in merged(updates) if each not in TITLES]
    return [json.dumps(each, sort_keys=True).replace(*VENDOR) for each in shown]


def answered(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer to a prompt, without the members of its usage that are 0."""
    usage = {name: value for name, value in (answer.get("usage") or {}).items() if value}
    return {**answer, "usage": usage}


def run(client: Client, agent: Agent) -> Outcome:
    return client.run(agent, {"do": "new"}, *({"do": "prompt", "text": each} for each in PROMPTS))


def test_the_updates_are_the_agents_own(
    python_editor: Client, tmp_path: Path, agents_prefix: Path, model_api: ModelApi
) -> None:
    server = tmp_path / "server"
    server.mkdir()
    with behind("scripted", server, agents_prefix, model_api) as kept:
        through = kept.agent(tmp_path)
        command = scripted_command("usage", home=tmp_path / "sessions")
        direct = Agent(command, through.cwd)
        there, here = run(python_editor, direct), run(python_editor, through)
        loaded = python_editor.run(through, {"do": "load", "session": here.session})
    for step, prompt in enumerate(PROMPTS, 2):
        assert lines(here.updates(step)) == lines(there.updates(step)), prompt
    assert list(map(answered, here.answers("prompt"))) == list(map(answered, there.answers("prompt")))
    assert asked(here) == asked(there)
    (made,), (made_there,) = here.answers("new"), there.answers("new")
    assert {**made, "sessionId": ""} == {**made_there, "sessionId": ""}

    # A second process gets the same again, with what the person said in between.
    said = [each for each in loaded.updates(1) if each["sessionUpdate"] == "user_message_chunk"]
    assert [each["content"]["text"] for each in said] == list(PROMPTS)
    past = [each for each in loaded.updates(1) if each not in said]
    whole = [each for step in range(2, len(PROMPTS) + 2) for each in there.updates(step)]
    assert lines(past) == lines(whole)


def asked(outcome: Outcome) -> list[Any]:
    """What permissions were asked for."""
    return [{**each["params"], "sessionId": ""} for each in outcome.of("permission")]
