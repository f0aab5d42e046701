"""`ostler wait`, `ostler approve` and `ostler deny`: conversations that run in the background."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure, Unreachable
from gateway.cli.operate.notify import notify
from gateway.cli.operate.which import STATUSES, WAITING, one
from gateway.cli.present import print_json, warn
from gateway.cli.text import SHORT_ID, one_line

POLL_SECONDS: Final = 0.5
"""Seconds between two looks: short enough for a person, and one cheap request for the server."""

PATIENCE_SECONDS: Final = 60.0
"""Seconds to wait for a server that has ended: its warden restarts it within seconds."""

MOST_IDS: Final = 99
"""Conversations that the server looks up at once."""

AT_WORK: Final = frozenset(STATUSES["at work"])


def wait(server: Server, arguments: Namespace) -> int:
    """Wait until all are done, and say when one waits for a person. 0 if all finished, else 1."""
    given = arguments.ids or [one(server, None, among="at work")]
    ids = dict.fromkeys(server.conversation_id(each) for each in given)
    if len(ids) > MOST_IDS:
        raise BadInput(f"at most {MOST_IDS} conversations can be waited for at once")
    waiting: set[str] = set()
    status = 0
    while ids:
        for conversation_id, info in zip(tuple(ids), _look(server, ids), strict=True):
            now = "deleted" if info is None else str(info["execution_status"])
            if now == WAITING and conversation_id not in waiting:
                waiting.add(conversation_id)
                notify(arguments.notify, conversation_id, now, _title(info))
                warn(f"{conversation_id[:SHORT_ID]} waits for a person: {_asked(info)}; see `ostler attach`")
            elif now != WAITING:
                waiting.discard(conversation_id)
            if now not in AT_WORK:
                del ids[conversation_id]
                status = status if now == "finished" else 1
                notify(arguments.notify, conversation_id, now, _title(info))
                _print(server, conversation_id, now, info, as_json=arguments.json)
        if ids:
            time.sleep(POLL_SECONDS)
    return status


def approve(server: Server, arguments: Namespace) -> None:
    """Allow what a conversation waits for. Raises Failure."""
    _respond(server, arguments, {"accept": True}, "allowed")


def deny(server: Server, arguments: Namespace) -> None:
    """Refuse what a conversation waits for, with a reason for the agent. Raises Failure."""
    given = {} if arguments.reason is None else {"reason": arguments.reason}
    _respond(server, arguments, {"accept": False, **given}, "refused")


def requests(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The permission requests of a conversation that wait for a person."""
    if info["execution_status"] != WAITING:
        return []
    found = (info.get("agent_state") or {}).get("permissions") or ()
    return [each for each in found if each["status"] == "waiting"]


def _respond(server: Server, arguments: Namespace, answer: Mapping[str, Any], done: str) -> None:
    """Answer each request that waits by its id: another one, which came since, stays."""
    conversation_id = one(server, arguments.id, among="waiting")
    path = f"/api/conversations/{conversation_id}"
    waiting = requests(server.get(path))
    if not waiting:
        raise Failure(f"{conversation_id[:SHORT_ID]} waits for nothing; `ostler ps` shows what waits")
    for request in waiting:
        server.post(f"{path}/events/respond_to_confirmation", {**answer, "request_id": request["id"]})
        if not arguments.json:
            print(f"{done}: {one_line(request['title'])}", flush=True)
    if arguments.json:
        print_json({done: [{"id": request["id"], "title": request["title"]} for request in waiting]})


def _look(server: Server, ids: Iterable[str]) -> list[Mapping[str, Any] | None]:
    """The conversations, None for those that are gone. Waits for a server that is away for a moment. Raises
    Failure."""
    path = f"/api/conversations?{urlencode([('ids', each) for each in ids])}"
    until = time.monotonic() + PATIENCE_SECONDS
    found: list[Mapping[str, Any] | None] | None = None
    while found is None:
        try:
            found = server.get(path)
        except Unreachable:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_SECONDS)
    return found


def _title(info: Mapping[str, Any] | None) -> str:
    return one_line((info or {}).get("title") or "")


def _asked(info: Mapping[str, Any] | None) -> str:
    titles = [one_line(each["title"]) for each in requests(info or {"execution_status": ""})]
    return ", ".join(titles) or "a permission"


def _print(
    server: Server, conversation_id: str, status: str, info: Mapping[str, Any] | None, *, as_json: bool
) -> None:
    if not as_json:
        print(f"{conversation_id[:SHORT_ID]}  {status}  {_title(info)}".rstrip(), flush=True)
        return
    path = f"/api/conversations/{conversation_id}/agent_final_response"
    response = None if info is None else server.get(path)["response"]
    print_json(
        {
            "conversation_id": conversation_id,
            "status": status,
            "title": (info or {}).get("title"),
            "response": response,
        }
    )
