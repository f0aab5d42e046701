"""What Ostler says as an ACP agent, version 1: answers, errors, capabilities. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
import structlog

from gateway.api.errors import DETAIL_CHARACTERS, problem_of
from gateway.api.requests.reading import bounded
from supervisor.acp import RpcError
from supervisor.acp.errors import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND
from supervisor.acp.schema import Choices, cut, mode_option, modes_block
from supervisor.acp.schema.session_options import parse_config_options
from supervisor.conversations.state.errors import AgentFailure

log = structlog.get_logger(__name__)

CODES: Final[Mapping[int, int]] = {404: RESOURCE_NOT_FOUND, 400: INVALID_PARAMS, 422: INVALID_PARAMS}
"""JSON-RPC codes by HTTP status; every other one is an internal error, since ACP has no code for it."""

STOP_REASONS: Final = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
"""ACP's. For any other, `end_turn` stands."""

SERVER_ENDED: Final = (
    "The server, or the agent's process, ended during the turn. What was done until then is shown; "
    "send a message to continue."
)

BLOCKED: Final = "A hook blocked the message: the agent did not get it."


def answer(request_id: Any, result: Any) -> bytes:
    """The frame of a result."""
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def refusal(request_id: Any, error: RpcError) -> bytes:
    """The frame of an error."""
    said: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        said["data"] = error.data
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": said})


def failure_of(error: Exception) -> RpcError:
    """The error that a client gets for an exception of a request. Unforeseen ones are logged."""
    if isinstance(error, RpcError):
        return error
    found = problem_of(error)
    if found is None:
        error_id = uuid.uuid4().hex
        log.error("ACP request failed", error_id=error_id, exc_info=error)
        return RpcError(INTERNAL_ERROR, "Internal error", {"error_id": error_id})
    status, detail = found
    data: dict[str, Any] = {"status": status}
    if isinstance(error, AgentFailure):
        data |= {"code": error.code, "user_action": error.user_action, "retryable": error.retryable}
    if isinstance(detail, str):
        return RpcError(CODES.get(status, INTERNAL_ERROR), cut(detail, DETAIL_CHARACTERS), data)
    problems = [{"loc": list(p.loc), "msg": p.msg, "type": p.type} for p in bounded(detail)]
    words = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)
    return RpcError(INVALID_PARAMS, cut(words, DETAIL_CHARACTERS), {"detail": problems})


def with_modes(offered: dict[str, Any]) -> dict[str, Any]:
    """What a session offers, with `modes` for clients that know no options, where an option has the modes."""
    option = mode_option(parse_config_options(offered) or ())
    if option is None or "modes" in offered:
        return offered
    available = tuple(option.choices)
    return {**offered, "modes": modes_block(Choices(option.chosen, available))}


def stop_reason(
    ended: Mapping[str, Any], error: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, RpcError | None]:
    """The answer to a prompt, a result or an error: from the state of its turn's end, and the error before
    it."""
    reason = ended.get("stop_reason")
    if reason == "interrupted":
        return None, RpcError(INTERNAL_ERROR, SERVER_ENDED, {"code": "interrupted"})
    if reason == "blocked":
        return None, RpcError(INTERNAL_ERROR, BLOCKED, {"code": "blocked"})
    if reason == "failed":
        return None, failed(error or {"code": ended.get("error")})
    result: dict[str, Any] = {"stopReason": reason if reason in STOP_REASONS else "end_turn"}
    used = usage(ended.get("usage"))
    return ({**result, "usage": used} if used else result), None


def failed(error: Mapping[str, Any]) -> RpcError:
    """The error of a turn that failed, from its ConversationErrorEvent."""
    detail = str(error.get("detail") or f"The turn failed: {error.get('code')}")
    return RpcError(INTERNAL_ERROR, cut(detail, DETAIL_CHARACTERS), {"code": error.get("code")})


_USAGE: Final = (
    ("inputTokens", "prompt_tokens"),
    ("outputTokens", "completion_tokens"),
    ("cachedReadTokens", "cache_read_tokens"),
    ("cachedWriteTokens", "cache_write_tokens"),
    ("thoughtTokens", "reasoning_tokens"),
)


def usage(used: Any) -> dict[str, int] | None:
    """The tokens of a turn, as ACP's draft of `usage` has them; None where the agent reported none."""
    if not isinstance(used, Mapping):
        return None
    counts = {name: used[key] for name, key in _USAGE if isinstance(used.get(key), int)}
    if not any(counts.values()):
        return None
    return {"totalTokens": counts.get("inputTokens", 0) + counts.get("outputTokens", 0), **counts}


def listed(infos: Sequence[Mapping[str, Any]], cwd: str | None) -> list[dict[str, Any]]:
    """The rows of `session/list` from conversations, those in `cwd` if it is given."""
    rows = []
    for info in infos:
        directory = info["workspace"]["working_dir"]
        if cwd is None or directory == cwd:
            row = {"sessionId": info["id"], "cwd": directory, "updatedAt": info["updated_at"]}
            rows.append({**row, "title": info["title"]} if info.get("title") else row)
    return rows
