"""Ostler's extension requests to the built-in agent (docs/built-in-agent.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.acp import ConnectionLost, RequestTimeout, RpcError, error_text
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.session import lost
from supervisor.conversations.state.errors import AgentTimeout, NotAccepted
from supervisor.conversations.state.failures import from_rpc

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
