"""`session/request_permission`: the action, and the options that the agent offers."""

from __future__ import annotations

from typing import Any, Final

import attrs

from supervisor.acp.errors import RpcError
from supervisor.acp.schema.bounds import NAME_CHARS
from supervisor.acp.schema.read import Json, as_object, exact_id, identifier, line, member, objects
from supervisor.acp.schema.update_reader import parse_tool_call_update
from supervisor.acp.schema.updates import ToolCallUpdate

OPTIONS_MAX: Final = 32
"""The most options of a request that are read. Agents offer two to six."""


@attrs.frozen
class PermissionOption:
    """One possible answer. Its `kind` has the meaning: allow_once, allow_always, reject_once, reject_always.

    The order of the options has no meaning: some agents put allow_always first. An option with an id too long
    to keep is left out: it could not be chosen.
    """

    option_id: str
    name: str
    kind: str


@attrs.frozen
class PermissionRequest:
    """A permission request. `tool_call` is an update of the call: members that it lacks are unchanged."""

    session_id: str
    tool_call: ToolCallUpdate
    options: tuple[PermissionOption, ...]
    raw: Json = attrs.field(repr=False)


def parse_permission(params: Any) -> PermissionRequest:
    """Read the parameters of a permission request. Raises RpcError (-32602) if they name no tool call."""
    raw = as_object(params)
    tool_call = parse_tool_call_update(member(raw, "toolCall"))
    if tool_call is None:
        raise RpcError.invalid_params("toolCall with a toolCallId is required")
    return PermissionRequest(
        session_id=identifier(raw, "sessionId") or "",
        tool_call=tool_call,
        options=tuple(
            PermissionOption(
                option_id,
                line(option, "name", NAME_CHARS) or option_id,
                line(option, "kind", NAME_CHARS) or "",
            )
            for option in (objects(raw, "options") or ())[:OPTIONS_MAX]
            if (option_id := exact_id(option, "optionId")) is not None
        ),
        raw=raw,
    )
