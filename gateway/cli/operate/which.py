"""Which conversations a command is about that got no id: the only one possible, or what a person chooses."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from gateway.cli.agents.names import agent_key, known_agents, no_agent
from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure
from gateway.cli.text import cut, distinct_length, one_line

MOST: Final = 9
"""Conversations that are listed to choose from: a person reads them all, and types one figure."""

TITLE_COLUMNS: Final = 50

ABSENT: Final = frozenset({"none", "stopped", "hibernated", "exited"})
"""The states of an agent that has no process, and will have none until it is needed."""


WAITING: Final = "waiting_for_confirmation"

STATUSES: Final[Mapping[str, tuple[str, ...]]] = {"waiting": (WAITING,), "at work": (WAITING, "running")}
"""Of the conversations that wait for a person, and of those with a turn."""

NONE: Final[Mapping[str, str]] = {
    "running": "no agent runs",
    "waiting": "no conversation waits for a person; `ostler ps` shows what runs",
    "at work": "no conversation is at work; `ostler conversations list` shows those that are done",
}
"""What to say where there is none."""


def one(server: Server, given: str | None, *, among: str) -> str:
    """The conversation that an id names; without one the only one, or that which a person chooses.

    `among`: `running` has those whose agent runs, `agents` those with an agent, or else all, `all` has all;
    `waiting` has those that wait for a person, `at work` these and those whose turn runs.
    Raises BadInput where several are possible and no person can be asked, Failure where none is.
    """
    if given:
        return server.conversation_id(given)
    if among in STATUSES:
        found = [each for status in STATUSES[among] for each in _newest(server, f"&status={status}")]
    else:
        found = _running(server) if among != "all" else []
        if not found and among != "running":
            found = _newest(server)
    if not found:
        raise Failure(NONE.get(among, "there is no conversation yet"))
    if len(found) == 1:
        return found[0][0]
    length = distinct_length([each for each, _, _ in found])
    shown = [
        f"{each[:length]} ({', '.join(filter(None, (agent, cut(one_line(title or ''), TITLE_COLUMNS))))})"
        for each, agent, title in found[:MOST]
    ]
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        more = ", ..." if len(found) > MOST else ""
        raise BadInput(f"several are possible, give the ID of one: {', '.join(shown)}{more}")
    return found[_asked(shown)][0]


def _newest(server: Server, more: str = "") -> list[tuple[str, str | None, str | None]]:
    """Id, agent and title of those that changed last."""
    items = server.pages("/api/conversations/search", f"sort_order=UPDATED_AT_DESC{more}")
    return [(each["id"], agent_key(each["agent"]), each["title"]) for each in islice(items, MOST + 1)]


def several(server: Server, arguments: Namespace) -> list[str] | None:
    """The conversations of --all or --agent whose agent runs; None without these. Raises BadInput."""
    name = arguments.agent
    if not (arguments.all or name):
        return None
    if sum(map(bool, (arguments.id, arguments.all, name))) > 1:
        raise BadInput("give an ID, --all, or --agent NAME")
    found = _running(server)
    known = {*known_agents(), *(agent for _, agent, _ in found)}
    if name is not None and name not in known:
        raise BadInput(no_agent(name))
    return [each for each, agent, _ in found if name in (None, agent)]


def _running(server: Server) -> list[tuple[str, str | None, str | None]]:
    """Id, agent and title of those that have a process, or will have one without a message."""
    agents: list[Mapping[str, Any]] = server.get("/api/agents")["agents"]
    return [
        (each["conversation_id"], each["provider"], each["title"])
        for each in agents
        if each["state"] not in ABSENT
    ]


def _asked(shown: list[str]) -> int:
    """Let a person choose; the number. Raises Failure without an answer."""
    for number, text in enumerate(shown, 1):
        print(f"{number}  {text}", file=sys.stderr)
    while True:
        print(f"Which one? 1 to {len(shown)}: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            print(file=sys.stderr)
        if not line.strip():
            raise Failure("none was chosen")
        if line.strip().isdecimal() and 1 <= int(line) <= len(shown):
            return int(line) - 1
