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
    "pieces": "a piece of text can come with the next one, where the journal and the live relay meet",
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
    """With consecutive pieces of one text as one."""
    found: list[Update] = []
    for update in updates:
        before = found[-1] if found else {}
        if (
            str(update["sessionUpdate"]).endswith("_chunk")
            and _frame(update) in (_frame(before),)
            and _frame(update)
        ):
            before["content"]["text"] += update["content"]["text"]
        else:
            found.append(deepcopy(update))
    return found


def _frame(update: Update) -> Update | None:
    """All but the text of a text; None of anything else."""
    content = update.get("content")
    if not isinstance(content, dict) or content.get("type") != "text":
        return None
    return {**update, "content": {**content, "text": ""}}


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
