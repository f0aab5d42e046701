"""The agent's last answer, found in a conversation's journal."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, Final

import orjson

from supervisor.journal import Log

SOME: Final = 20
"""Events per read of the journal; the first one nearly always is the answer."""

Reading = Callable[[Mapping[str, Any]], str | None]


async def final_response(log: Log, branch: Container[int] | None = None) -> str:
    """Return the text of the newest final answer; empty if there is none.

    `branch`: the sequence numbers that count; None: all.

    A final answer is a FinishAction, or a message of the agent, whichever is newer.
    """
    finish = await _newest(log, branch, "ActionEvent", "FinishAction", _finish_text)
    message = await _newest(log, branch, "MessageEvent", None, _message_text)
    found = [item for item in (finish, message) if item is not None]
    return max(found)[1] if found else ""


async def _newest(
    log: Log, branch: Container[int] | None, kind: str, body: str | None, read: Reading
) -> tuple[int, str] | None:
    """Sequence number and text of the newest agent event of `kind` in which `read` finds a text."""
    page: str | None = None
    while True:
        found = await log.search(kind=kind, source="agent", body=body, order="desc", page=page, limit=SOME)
        for stored in found.items:
            if branch is not None and stored.seq not in branch:
                continue
            text = read(orjson.loads(stored.body))
            if text is not None:
                return stored.seq, text
        page = found.next_page_id
        if page is None:
            return None


def _finish_text(event: Mapping[str, Any]) -> str | None:
    action = event.get("action")
    if isinstance(action, Mapping) and action.get("kind") == "FinishAction":
        return str(action.get("message", ""))
    return None


def _message_text(event: Mapping[str, Any]) -> str | None:
    parts = [part["text"] for part in event["llm_message"].get("content", ()) if part.get("type") == "text"]
    return "\n".join(parts) if parts else None
