"""`ostler conversations`: list, show, export, delete."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from gateway.cli.agents.names import agent_key
from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure
from gateway.cli.operate.background import requests
from gateway.cli.present import print_json, print_table, warn
from gateway.cli.text import cut, distinct_length, one_line, pairs, terminal_width, used

COLUMNS: Final = ("ID", "STATUS", "AGENT", "CHANGED", "TITLE")

DROPPED: Final = ("CHANGED", "AGENT")
"""The columns that a narrow terminal does without."""

TITLE_COLUMNS: Final = 60

POLICIES: Final[Mapping[str, str]] = {
    "AlwaysConfirm": "asks a person",
    "NeverConfirm": "allows every request of the agent",
    "ConfirmRisky": "asks a person about risky actions",
}
"""What a conversation does with the requests of its agent, by the kind of its policy."""


def do_list(server: Server, arguments: Namespace) -> None:
    """List them, the one changed last first."""
    query = "sort_order=UPDATED_AT_DESC"
    if arguments.status is not None:
        query += f"&status={quote(arguments.status, safe='')}"
    items = server.pages("/api/conversations/search", query)
    found = [each for each, _ in zip(items, range(arguments.limit), strict=False)]
    if arguments.json:
        print_json({"conversations": found})
        return
    if not found:
        print("no conversations")
        return
    length = distinct_length([each["id"] for each in found])
    rows = [
        (
            each["id"][:length],
            each["execution_status"],
            _agent(each),
            moment(each["updated_at"]),
            cut(one_line(each["title"] or ""), TITLE_COLUMNS),
        )
        for each in found
    ]
    print_table(COLUMNS, rows, DROPPED)


def _agent(conversation: Mapping[str, Any]) -> str:
    return agent_key(conversation.get("agent")) or "-"


def moment(timestamp: str) -> str:
    """A time for people: to the minute, where they are."""
    return f"{datetime.fromisoformat(timestamp).astimezone():%Y-%m-%d %H:%M}"


def do_show(server: Server, arguments: Namespace) -> None:
    """Print the details of one conversation."""
    conversation_id = server.conversation_id(arguments.id)
    found = server.get(f"/api/conversations/{conversation_id}")
    events = server.get(f"/api/conversations/{conversation_id}/events/count")
    if arguments.json:
        print_json({**found, "events": events})
        return
    answer = server.get(f"/api/conversations/{conversation_id}/agent_final_response")["response"]
    waiting = [one_line(each["title"]) for each in requests(found)]
    state = found.get("agent_state") or {}
    policy = str((found.get("confirmation_policy") or {}).get("kind"))
    name = " ".join(filter(None, (state.get("acp_agent_name"), state.get("acp_agent_version"))))
    shown = [
        ("id", found["id"]),
        ("title", found["title"] or "-"),
        ("status", found["execution_status"]),
        *([("waits for", ", ".join(waiting))] if waiting else []),
        ("agent", _agent(found) + (f" ({name})" if name else "")),
        ("model", found.get("current_model_id") or "default of the agent"),
        ("directory", found["workspace"]["working_dir"]),
        ("permissions", POLICIES.get(policy, policy)),
        ("begun", moment(found["created_at"])),
        ("changed", moment(found["updated_at"])),
        ("events", str(events)),
        ("used", used(found["stats"]) or "-"),
        ("answer", one_line(answer) or "-"),
    ]
    print("\n".join(pairs(shown, terminal_width())))


def do_delete(server: Server, arguments: Namespace) -> int:
    """Delete them, after asking. 1 when one of them could not be."""
    ids = [server.conversation_id(each) for each in arguments.ids]
    if not arguments.yes:
        _make_sure(server, ids)
    deleted, failed = [], 0
    for conversation_id in dict.fromkeys(ids):
        try:
            server.call("DELETE", f"/api/conversations/{conversation_id}")
        except Failure as error:
            warn(f"{conversation_id}: {error}")
            failed = error.status
            continue
        deleted.append(conversation_id)
        if not arguments.json:
            print(f"deleted {conversation_id}", flush=True)
    if arguments.json:
        print_json({"deleted": deleted})
    return failed


def _make_sure(server: Server, ids: list[str]) -> None:
    """Ask for confirmation. Raises BadInput without a terminal, Failure for a no."""
    if not sys.stdin.isatty():
        raise BadInput("deleting requires a confirmation; give --yes where there is no terminal")
    for conversation_id in ids:
        title = server.get(f"/api/conversations/{conversation_id}")["title"] or "no title"
        print(f"{conversation_id}  {one_line(title)}", file=sys.stderr)
    print("Delete it with all its events? [y]es, [n]o: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)  # Ctrl-D leaves the line open
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure("nothing was deleted")
