"""`ostler ps`: list the agents."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.present import present
from gateway.cli.text import duration, number, size, table, terminal_width

SHORT_ID: Final = 8
"""Characters of an id that are shown, more where two agents would look the same."""

SPARE, PARENT = "spare", "parent"
"""The states shown for a warm process, which no conversation uses yet, and for the process that forks
these."""

COLUMNS: Final = (
    "ID", "AGENT", "PID", "STATE", "UP", "IDLE", "MEM", "CPU",
    "PROCS", "QUEUE", "RESTARTS", "LAST EXIT", "TITLE",
)  # fmt: skip
RIGHT: Final = frozenset({"PID", "UP", "IDLE", "MEM", "CPU", "PROCS", "QUEUE", "RESTARTS"})


def run(server: Server, arguments: Namespace) -> None:
    """List the agents. Raises Failure."""
    present(server, "/api/agents", arguments, lambda answer: lines(rows(answer), terminal_width()))


def rows(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The agents of an answer, followed by the warm processes."""
    return [*answer["agents"], *map(_spare, answer.get("spares", ()))]


def lines(agents: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """The table, cut to the width."""
    if not agents:
        return ["no agents"]
    ids = [agent["conversation_id"] for agent in agents if agent["state"] not in (SPARE, PARENT)]
    length = SHORT_ID
    while len({each[:length] for each in ids}) < len(ids):
        length += 1
    rows = [_row(agent["conversation_id"][:length], agent) for agent in agents]
    return table(COLUMNS, rows, width, RIGHT)


def _spare(spare: Mapping[str, Any]) -> dict[str, Any]:
    """A warm process, in the form of an agent."""
    nothing = dict.fromkeys(("idle", "queue", "restarts", "last_exit", "title"))
    return {**nothing, **spare, "conversation_id": "-", "state": spare.get("kind", SPARE)}


def _row(shown_id: str, agent: Mapping[str, Any]) -> tuple[str, ...]:
    name = " ".join(part for part in (agent["provider"], agent["version"]) if part)
    return (
        shown_id,
        name,
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
        agent["title"] or "",
    )
