"""A conversation with an agent that tells its events itself, as the built-in one does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.start import StartRequest
from supervisor.events import Vocabulary
from supervisor.settings.agent import BuiltInSettings
from tests.conversations.harness import Harness, open_harness
from tests.support.scripted import scripted_command

KEY = "sk-of-the-model-1234567890"
DOCUMENT = {"agent": {"kind": "Agent", "llm": {"model": "m", "api_key": KEY}}}
ALWAYS = {"kind": "AlwaysConfirm"}


async def start(harness: Harness, *modes: str, **fields: Any) -> Conversation:
    root = harness.root
    command = scripted_command("tells", *modes, log=root / "scripted.log", home=root / "scripted-home")
    agent = BuiltInSettings(
        acp_command=tuple(command),
        document=DOCUMENT,
        shown={"kind": "Agent", "llm": {"model": "m", "api_key": "**********"}},
    )
    request = StartRequest(
        working_dir=str(root / "workspace"),
        agent=agent,
        spelled_out=True,
        event_vocabulary=Vocabulary.EXTENDED,
        **fields,
    )
    conversation, _ = await harness.supervisor.create(request)
    return conversation


@asynccontextmanager
async def told(root: Path, *modes: str, **fields: Any) -> AsyncIterator[tuple[Harness, Conversation]]:
    async with open_harness(root) as harness:
        yield harness, await start(harness, *modes, **fields)


def repeats(event_id: str) -> str:
    """A script: the agent tells this message of a user's, as if it were new."""
    message = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    told_again = {"kind": "MessageEvent", "id": event_id, "source": "user", "llm_message": message}
    return f"!tell event {json.dumps({'event': told_again})}"


def handed(harness: Harness) -> list[str | None]:
    """The ids of the messages that the agent was prompted with."""
    prompts = harness.log.received("session/prompt")
    return [each["params"]["_meta"]["ostler"].get("message_id") for each in prompts]
