"""What this program changes in the SDK and its libraries, and what it takes from them in another form.

A fault of a library that affects a conversation is worked around until the library fixes it. Completions are
logged as events, without secrets and without what providers encrypt for themselves.

The SDK looks in the workspace for sub-agents (`.agents/agents`, `.openhands/agents`) and plugins
(`.agents/plugins`, `.openhands/plugins`) by itself. The hooks of these untrusted definitions would run as
commands, unconfirmed. They are dropped, unless the operator allows the hooks of projects
(`OSTLER_HOOKS=project`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from litellm.litellm_core_utils.streaming_chunk_builder_utils import ChunkProcessor
from openhands.sdk.event.llm_completion_log import LLMCompletionLogEvent
from openhands.sdk.llm import LLM
from openhands.sdk.plugin import discovery
from openhands.sdk.subagent import registry

from .. import children, streams
from . import profiles

ENCRYPTED = "encrypted_content"

HIDDEN = "<hidden>"

log = logging.getLogger(__name__)

_hooks_run = False


def mend() -> None:
    """Apply all changes, once per process."""
    combine = ChunkProcessor.get_combined_thinking_content
    if getattr(combine, "mended", False):
        return

    def combined(self: Any, chunks: Any) -> Any:
        say_thoughts_once(chunks)
        return combine(self, chunks)

    combined.mended = True  # type: ignore[attr-defined]
    ChunkProcessor.get_combined_thinking_content = combined
    streams.install()
    children.install()
    profiles.mend()
    _drop_hooks()


def say_thoughts_once(chunks: Any) -> None:
    """Remove the thoughts from chunks that repeat them.

    litellm 1.105 sends the whole of a thought with its signature, after its pieces, and then joins all of
    them: the thought is there twice, and goes back to the provider like that, with a signature that does not
    match.
    """
    said = ""
    for block in (block for chunk in chunks for block in _thoughts(chunk)):
        if not block.get("signature"):
            said += block.get("thinking") or ""
            continue
        if said and block.get("thinking") == said:
            block["thinking"] = ""
        said = ""


def _thoughts(chunk: Any) -> list[Any]:
    deltas = [choice.get("delta") or {} for choice in chunk["choices"]]
    return [block for delta in deltas for block in delta.get("thinking_blocks") or []]


def allow_hooks(hooks: bool) -> None:
    """Set whether the workspace's hooks run, from the next conversation of this process on."""
    global _hooks_run
    _hooks_run = hooks


def _drop_hooks() -> None:
    """Filter what the SDK finds before it is used."""
    agents, plugins = registry.load_project_agents, discovery.load_project_plugins

    def load_project_agents(project_dir: Any) -> list[Any]:
        return [_without_hooks(each) for each in agents(project_dir)]

    def load_project_plugins(work_dir: Any) -> list[Any]:
        found = [_without_hooks(each) for each in plugins(work_dir)]
        return [
            each.model_copy(update={"agents": [_without_hooks(agent) for agent in each.agents]})
            for each in found
        ]

    registry.load_project_agents = load_project_agents
    discovery.load_project_plugins = load_project_plugins


def _without_hooks(found: Any) -> Any:
    if _hooks_run or found.hooks is None:
        return found
    log.warning("The hooks of %s are left out: it is from the workspace.", found.name)
    return found.model_copy(update={"hooks": None})


def log_completions(
    llm: LLM, report: Callable[[LLMCompletionLogEvent], None], mask: Callable[[str], str]
) -> None:
    """Report every completion of a model as an event, instead of writing files."""

    def logged(name: str, data: str) -> None:
        text = mask(without_encrypted(data))
        report(
            LLMCompletionLogEvent(filename=name, log_data=text, model_name=llm.model, usage_id=llm.usage_id)
        )

    llm.telemetry.set_log_completions_callback(logged)


def without_encrypted(data: str) -> str:
    """Return a log (JSON) without the encrypted content of reasoning items, at any depth."""
    if ENCRYPTED not in data:
        return data
    return json.dumps(_without(json.loads(data)), ensure_ascii=False)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if key == ENCRYPTED and each else _without(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each) for each in value]
    return value
