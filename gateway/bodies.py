"""Request bodies as plain values: read from the request, decoded, validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

import attrs
import orjson
from quart import Request

from gateway.errors import ApiError
from gateway.reading import Invalid, Reader
from supervisor.events import Message, Role, decode_message
from supervisor.reading import ErrorDetail
from supervisor.reading import Invalid as Malformed
from supervisor.settings import MAX_DEPTH, too_deep

JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)

ROLES: Final[tuple[str, ...]] = get_args(Role)

MAX_TITLE_CHARACTERS = 200

DEFAULT_REASON = "User rejected the action."

MAX_REASON_CHARACTERS = 10_000
"""Longest reason for a rejection: it is an event, and the agent may be told."""

MAX_ANALYZER_BYTES = 16 * 1024
"""Largest security analyzer: nobody here runs it, and it is a part of every look at its conversation."""


async def json_body(request: Request, *, required: bool = True) -> Any:
    """The JSON in the request's body; None when there is none and none is required.

    Only declared JSON is read: a page of another site can make a browser post anything else here without
    asking first. Raises ApiError(415) for other types and Invalid for what is not JSON.
    """
    data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    if not data:
        if required:
            raise Invalid(ErrorDetail(("body",), "Field required", "missing"))
        return None
    if not JSON_TYPE.fullmatch(request.mimetype or ""):
        raise ApiError(415, "The body must be JSON, with the header Content-Type: application/json")
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Invalid(
            ErrorDetail(("body", error.pos), f"JSON decode error: {error.msg}", "json_invalid")
        ) from None
    # What is read here may be written again, and cannot be from some depth on. Counting comes first: it is
    # cheap, and few bodies have as many brackets.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and too_deep(body):
        msg = f"Value error, nested deeper than {MAX_DEPTH} levels"
        raise Invalid(ErrorDetail(("body",), msg, "value_error"))
    return body


def event_ids(body: Any, limit: int) -> list[str]:
    """A JSON array of event ids, at most `limit` of them. Raises Invalid."""
    if not isinstance(body, list):
        raise Invalid(ErrorDetail(("body",), "Input should be a valid list", "list_type"))
    if len(body) > limit:
        msg = f"List should have at most {limit} items, not {len(body)}"
        raise Invalid(ErrorDetail(("body",), msg, "too_long"))
    problems = [
        ErrorDetail(("body", index), "Input should be a valid string", "string_type")
        for index, value in enumerate(body)
        if not isinstance(value, str)
    ]
    if problems:
        raise Invalid(*problems)
    return body


@attrs.frozen
class SendMessage:
    """A user's message and whether the agent is to be run on it."""

    message: Message
    run: bool

    @classmethod
    def read(cls, body: Any) -> SendMessage:
        """Decode a SendMessageRequest."""
        reader = Reader(body, ("body",))
        run = reader.flag("run")
        message = read_message(reader)
        reader.finish()
        assert message is not None
        return cls(message, run)


def read_message(reader: Reader) -> Message | None:
    """The user message of which `reader` reads the object; None when problems were noted."""
    before = len(reader.problems)
    role = reader.choice("role", ROLES, "user")
    content = reader.array("content")
    if role != "user" and len(reader.problems) == before:
        reader.wrong(("role",), "Only user messages are allowed to be sent to the agent.", "value_error")
    if len(reader.problems) > before:
        return None
    try:
        return decode_message({"role": role, "content": content or []})
    except Malformed as error:
        for detail in error.errors:
            reader.wrong(tuple(detail.loc), detail.msg, detail.type)
        return None


@attrs.frozen
class UpdateConversation:
    """A new title, new tags, or both; None leaves as it is."""

    title: str | None
    tags: dict[str, str] | None

    @classmethod
    def read(cls, body: Any) -> UpdateConversation:
        """Decode an UpdateConversationRequest."""
        reader = Reader(body, ("body",))
        title = read_title(reader)
        tags = reader.tags("tags")
        reader.finish()
        return cls(title, tags)


def read_title(reader: Reader) -> str | None:
    """The property `title`, without white space around it; None when it is not given."""
    title = reader.string("title", min_length=1, max_length=MAX_TITLE_CHARACTERS)
    if title and not title.strip():
        reader.wrong(("title",), "Value error, a title must not be blank", "value_error")
    return None if title is None else title.strip()


@attrs.frozen
class ConfirmationResponse:
    """A person's answer to a pending request for permission."""

    accept: bool
    reason: str

    @classmethod
    def read(cls, body: Any) -> ConfirmationResponse:
        """Decode a ConfirmationResponseRequest."""
        reader = Reader(body, ("body",))
        accept = reader.flag("accept", required=True)
        reason = reader.string("reason", DEFAULT_REASON, max_length=MAX_REASON_CHARACTERS) or DEFAULT_REASON
        reader.finish()
        return cls(accept, reason)


@attrs.frozen
class SecretWrite:
    """A global secret to be stored. Name and value are checked by the store."""

    name: str
    value: str = attrs.field(repr=False)
    description: str | None = None

    @classmethod
    def read(cls, body: Any) -> SecretWrite:
        """Decode a SecretCreateRequest."""
        reader = Reader(body, ("body",))
        name, value = reader.text("name"), reader.text("value")
        description = reader.string("description")
        reader.finish()
        return cls(name, value, description)


POLICIES = ("NeverConfirm", "AlwaysConfirm", "ConfirmRisky")
THRESHOLDS = ("LOW", "MEDIUM", "HIGH")


def read_policy(reader: Reader) -> dict[str, Any]:
    """A confirmation policy with its defaults filled in (NeverConfirm when problems were noted)."""
    kind = reader.string("kind", required=True)
    if kind is not None and kind not in POLICIES:
        reader.wrong(("kind",), f"Input should be one of {', '.join(POLICIES)}", "union_tag_invalid")
    if kind == "ConfirmRisky":
        return {
            "kind": kind,
            "threshold": reader.choice("threshold", THRESHOLDS, "HIGH"),
            "confirm_unknown": reader.flag("confirm_unknown", True),
        }
    return {"kind": kind or "NeverConfirm"}


def policy_body(body: Any) -> dict[str, Any]:
    """Decode a SetConfirmationPolicyRequest."""
    reader = Reader(body, ("body",))
    found = reader.mapping("policy", required=True)
    policy = read_policy(reader.below("policy", found)) if found is not None else {}
    reader.finish()
    return policy


def read_analyzer(reader: Reader) -> dict[str, Any] | None:
    """The `security_analyzer` of the object that `reader` reads: any kind, kept as it is."""
    found = reader.mapping("security_analyzer")
    if found is not None:
        reader.below("security_analyzer", found).text("kind")
        if len(orjson.dumps(found)) > MAX_ANALYZER_BYTES:
            msg = f"Object should have at most {MAX_ANALYZER_BYTES} bytes of JSON"
            reader.wrong(("security_analyzer",), msg, "too_long")
    return found


def analyzer_body(body: Any) -> dict[str, Any] | None:
    """Decode a SetSecurityAnalyzerRequest."""
    reader = Reader(body, ("body",))
    if "security_analyzer" not in reader.obj:
        reader.wrong(("security_analyzer",), "Field required", "missing")
    analyzer = read_analyzer(reader)
    reader.finish()
    return analyzer


def secrets_body(body: Any) -> Mapping[str, Any]:
    """The `secrets` of an UpdateSecretsRequest, still in their JSON form."""
    reader = Reader(body, ("body",))
    found = reader.mapping("secrets", required=True)
    reader.finish()
    assert found is not None
    return found


def restart_body(body: Any) -> bool:
    """Decode a RestartAgentRequest: whether to use force."""
    if body is None:
        return False
    reader = Reader(body, ("body",))
    force = reader.flag("force")
    reader.finish()
    return force


def rename_body(body: Any) -> str:
    """The new name that a profile is to have."""
    reader = Reader(body, ("body",))
    new_name = reader.text("new_name")
    reader.finish()
    return new_name
