"""`ostler servers` and `ostler drain`: the servers that share one database."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from gateway.cli.client import Server
from gateway.cli.present import present, print_json
from gateway.cli.text import duration, size, table, terminal_width

COLUMNS: Final = ("NAME", "STATE", "ADDRESS", "CONVERSATIONS", "FREE", "LEASE", "VERSION", "LABELS")
RIGHT: Final = frozenset({"CONVERSATIONS", "FREE", "LEASE"})
DROPPED: Final = ("LABELS", "VERSION", "FREE", "LEASE")
"""The columns that a narrow terminal does without, the least important first."""


def servers(server: Server, arguments: Namespace) -> None:
    """List the servers. Raises Failure."""
    present(server, "/api/servers", arguments, lambda answer: lines(answer["servers"], terminal_width()))


def drain(server: Server, arguments: Namespace) -> int:
    """Have a server give its conversations to the others. Raises Failure."""
    answer = server.post(f"/api/servers/{quote(arguments.name, safe='')}/drain")
    print_json(answer) if arguments.json else print(f"{arguments.name} gives its conversations to the others")
    return 0


def lines(found: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """The table, cut to the width; the server that answered has a star."""
    if not found:
        return ["this server is alone: OSTLER_DATABASE is not set"]
    rows = [
        (
            f"{each['name']}{'*' if each['this'] else ''}",
            each["state"],
            each["address"],
            str(each["conversations"]),
            size(each["free_bytes"]),
            duration(max(0.0, each["lease_seconds"])),
            each["version"],
            ",".join(f"{name}={value}" for name, value in sorted(each["labels"].items())),
        )
        for each in found
    ]
    return table(COLUMNS, rows, width, RIGHT, DROPPED)
