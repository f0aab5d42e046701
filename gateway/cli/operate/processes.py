"""`ostler ps`, `ostler restart` and `ostler stop`: the agents' processes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import Failure, Unreachable
from gateway.cli.operate.which import ABSENT, one, several
from gateway.cli.present import present, print_json, warn
from gateway.cli.text import (
    amount,
    distinct_length,
    duration,
    money,
    number,
    size,
    table,
    terminal_width,
)

WARM, PARENT = "spare", "parent"
"""The states shown for a warm process, which no conversation uses yet, and for the process that forks
these."""

WAITING: Final = "waiting"

COLUMNS: Final = (
    "ID", "AGENT", "SERVER", "PID", "STATE", "UP", "IDLE", "MEM", "CPU",
    "PROCS", "QUEUE", "RESTARTS", "LAST EXIT", "TOKENS", "COST", "TITLE",
)  # fmt: skip
RIGHT: Final = frozenset(COLUMNS) - {"ID", "AGENT", "SERVER", "STATE", "LAST EXIT", "TITLE"}

DROPPED: Final = (
    "PROCS", "QUEUE", "CPU", "RESTARTS", "PID", "LAST EXIT", "IDLE", "UP", "MEM", "TOKENS", "COST", "AGENT",
)  # fmt: skip
"""The columns that a narrow terminal does without, the least important first."""


def ps(server: Server, arguments: Namespace) -> None:
    """List the agents. Raises Failure."""
    present(server, "/api/agents", arguments, lambda answer: lines(rows(answer), terminal_width()))


def restart(server: Server, arguments: Namespace) -> int:
    """Restart the agent of a conversation, or several. 1 where one of several failed. Raises Failure."""

    def act(conversation_id: str) -> Any:
        return server.post(f"/api/agents/{conversation_id}/restart", {"force": arguments.force})

    ids = several(server, arguments)
    if ids is not None:
        return _each(ids, "restarted", act, arguments)
    conversation_id = one(server, arguments.id, among="running")
    answer = act(conversation_id)
    print_json(answer) if arguments.json else print(f"restarted the agent of {conversation_id}")
    return 0


def stop(server: Server, arguments: Namespace) -> int:
    """End the agent of a conversation, which remains, or several. 1 where one of several failed. Raises
    Failure."""
    ids = several(server, arguments)
    if ids is not None:
        return _each(ids, "stopped", partial(stopped, server), arguments)
    conversation_id = one(server, arguments.id, among="running")
    ended = stopped(server, conversation_id)
    if arguments.json:
        print_json({"success": True})
    else:
        print(f"stopped the agent of {conversation_id}" if ended else f"no agent runs for {conversation_id}")
    return 0


def _each(ids: list[str], done: str, act: Callable[[str], object], arguments: Namespace) -> int:
    """Do it with each, and say so; what fails is said, and the others follow."""
    failed, succeeded = 0, []
    for conversation_id in ids:
        try:
            act(conversation_id)
        except Unreachable:
            raise
        except Failure as error:
            warn(f"{conversation_id}: {error}")
            failed = error.status
            continue
        succeeded.append(conversation_id)
        if not arguments.json:
            print(f"{done} the agent of {conversation_id}", flush=True)
    if arguments.json:
        print_json({done: succeeded})
    elif not ids:
        print("no agents run" if arguments.agent is None else f"no agent {arguments.agent} runs")
    return failed


def stopped(server: Server, conversation_id: str) -> bool:
    """End the agent of a conversation. Returns False where none ran. Raises Failure."""
    before = server.get(f"/api/agents/{conversation_id}")["state"]
    server.post(f"/api/agents/{conversation_id}/stop")
    return before not in ABSENT


def rows(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The agents of an answer, first those that wait for a person, last the warm processes in the form of
    agents."""
    nothing = dict.fromkeys(("idle", "queue", "restarts", "last_exit", "title"))
    warm = (
        {**nothing, **each, "conversation_id": "-", "state": each.get("kind", WARM)}
        for each in answer.get("spares", ())
    )
    return [*sorted(answer["agents"], key=lambda agent: agent["state"] != WAITING), *warm]


def lines(agents: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """The table, cut to the width."""
    if not agents:
        return ["no agents"]
    ids = [agent["conversation_id"] for agent in agents if agent["state"] not in (WARM, PARENT)]
    length = distinct_length(ids)
    rows = [_row(agent["conversation_id"][:length], agent) for agent in agents]
    if all(agent.get("server") is None for agent in agents):  # it is alone
        at = COLUMNS.index("SERVER")
        return table(_without(COLUMNS, at), [_without(row, at) for row in rows], width, RIGHT, DROPPED)
    return table(COLUMNS, rows, width, RIGHT, DROPPED)


def _without(row: Sequence[str], at: int) -> tuple[str, ...]:
    return (*row[:at], *row[at + 1 :])


def _row(shown_id: str, agent: Mapping[str, Any]) -> tuple[str, ...]:
    name = " ".join(part for part in (agent["provider"], agent["version"]) if part)
    used = agent.get("usage") or {"tokens": 0, "costs": {}}
    return (
        shown_id,
        name,
        agent.get("server") or "-",
        number(agent["pid"]),
        agent["state"],
        duration(agent["uptime"]),
        duration(agent["idle"]),
        size(agent["rss_bytes"]),
        duration(agent["cpu_seconds"]),
        number(agent["processes"]),
        number(agent["queue"]),
        number(agent["restarts"]),
        agent["last_exit"] or "-",
        amount(used["tokens"]) if used["tokens"] else "-",
        money(used["costs"]),
        agent["title"] or "",
    )
