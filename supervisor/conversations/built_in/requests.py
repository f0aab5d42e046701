"""What Ostler sends to the built-in agent besides ACP: `_meta.ostler` and extension requests
(docs/built-in-agent.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.acp import ConnectionLost, RequestTimeout, RpcError, error_text
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.session_setup import lost
from supervisor.conversations.built_in.memory import memory_directory
from supervisor.conversations.history.prompt import Blocks, in_words
from supervisor.conversations.state.errors import AgentTimeout, NotAccepted
from supervisor.conversations.state.failures import from_rpc
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import TextContent
from supervisor.settings.agent import BuiltInSettings

ASK: Final = "_ostler/ask"
CONDENSE: Final = "_ostler/condense"
CONFIGURE: Final = "_ostler/configure"
LOAD_PLUGIN: Final = "_ostler/load_plugin"
MESSAGE: Final = "_ostler/message"
NAVIGATE: Final = "_ostler/navigate"
PAUSE: Final = "_ostler/pause"
TITLE: Final = "_ostler/title"

INVALID_PARAMS: Final = -32602


async def request(run: Incarnation, method: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Send an extension request about the agent's open session, and return its answer. `seconds`: the
    timeout.

    Raises NotAccepted if the agent refuses the input, AgentTimeout, AgentFailure.
    """
    assert run.session is not None
    given = {"sessionId": run.session.session_id, **params}
    if run.plan.door is not None:
        given = run.plan.door.wiring.session(given)  # it may hold a model with its key
    try:
        answer = await run.connection.request(method, given, timeout=seconds)
    except RpcError as error:
        if error.code == INVALID_PARAMS:
            raise NotAccepted(error_text(error)) from error
        raise from_rpc(error, "ACPPromptError") from error
    except RequestTimeout as error:
        detail = f"The agent did not answer {method.removeprefix('_ostler/')} within {seconds:g} s."
        raise AgentTimeout(
            "ACPPromptError", detail, kind="transient", retryable=True, user_action="retry"
        ) from error
    except ConnectionLost as error:
        raise lost(error) from error
    return dict(answer) if isinstance(answer, Mapping) else {}


PASSED_ON: Final = (
    "agent_definitions",
    "agent_launch_additions",
    "client_tools",
    "hook_config",
    "load_memory",
    "max_budget_per_run",
    "observability_metadata",
    "observability_parent_span_context",
    "observability_span_name",
    "observability_tags",
    "plugins",
    "stuck_detection_thresholds",
    "tool_module_qualnames",
    "user_id",
)
"""Members of a start request that only the built-in agent uses; Ostler keeps them in `extra`."""


def parameters(
    record: ConversationRecord,
    agent: BuiltInSettings,
    secrets: Mapping[str, str],
    routing: Mapping[str, Any],
    data: Path,
    *,
    project_hooks: bool = False,
) -> dict[str, Any]:
    """The parameters of a session. `agent` is decrypted, and holds keys, as do `secrets` and `routing`
    (`Launcher.routing`). `project_hooks`: whether hooks run that the SDK finds in the workspace."""
    return {
        **routing,
        **(agent.document or {}),
        "conversation_id": record.id,
        "persistence_dir": str(memory_directory(data, record.id)),
        "confirmation_policy": record.confirmation_policy,
        "security_analyzer": record.security_analyzer,
        "max_iterations": record.start.max_iterations,
        "stuck_detection": record.start.stuck_detection,
        "tags": dict(record.tags),
        "secrets": dict(secrets),
        "project_hooks": project_hooks,
        **({"waiting": list(record.now.asked)} if record.now.asked else {}),
        **{name: record.extra[name] for name in PASSED_ON if record.extra.get(name) is not None},
    }


def title_parameters(record: ConversationRecord) -> dict[str, Any]:
    """The parameters of the request for a title: the model profile and the prompt."""
    wanted = {"profile": record.extra.get("title_llm_profile"), "prompt": record.extra.get("prompt")}
    return {name: value for name, value in wanted.items() if value}


def built_in_prompt(item: Queued, transcript: str | None, enclosed: Blocks) -> dict[str, Any]:
    """The parameters of a prompt: the message as its client wrote it, with other blocks described in text,
    and the id of its event. No message if the agent is to continue. `transcript`: a preface for an agent that
    lost its memory."""
    if item.resumes:
        return {}
    from supervisor.events.encode import encode  # late, since it loads all event types

    message = in_words(item.message, enclosed)
    if transcript is not None:
        message = attrs.evolve(message, content=(TextContent(text=transcript), *message.content))
    return {"message_id": item.event_id, "message": encode(message)}
