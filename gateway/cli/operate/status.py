"""`ostler status`: show the state of the server."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.present import present
from gateway.cli.text import amount, duration, money, pairs, size, terminal_width

DESCRIPTOR_KINDS: Final = ("agents", "terminals", "connections")


def run(server: Server, arguments: Namespace) -> None:
    """Print the server's status. Raises Failure."""
    present(server, "/api/status", arguments, lambda answer: lines(server.url, answer, terminal_width()))


def lines(url: str, status: Mapping[str, Any], width: int | None) -> list[str]:
    """The status as lines of text."""
    conversations, agents, totals = status["conversations"], status["agents"], status["totals"]
    limits = status["limits"]
    memory = size(agents["rss_bytes"])
    if limits["memory_bytes"] is not None:
        memory += f" of {size(limits['memory_bytes'])}"
    live = _counts(agents, "live", "starting", "queued", "hibernated", "parked")
    if limits["agents"] is not None:
        live += f"; at most {limits['agents']}"
    idle = limits["idle_seconds"]
    admission = f"{limits['starts']} starts at a time; {limits['when_full']} when full; " + (
        f"hibernated when idle for {duration(idle)}" if idle is not None else "idle agents keep running"
    )
    key = status["secret_key"]
    descriptors = status.get("descriptors")
    found = [
        ("server", f"{url}, {status['status']}, up {duration(status['uptime'])}, pid {status['pid']}"),
        ("version", f"{status['version']} (Python {status['python_version']})"),
        ("state", status["state"]),
        ("containment", status["containment"]),
        *([("walls", _walls(status["walls"]))] if "walls" in status else []),
        *([("journal", _journal(status["journal"]))] if "journal" in status else []),
        ("secret key", key["source"] or f"none: {key['problem']}"),
        (
            "session keys",
            "required" if status["session_key_wanted"] else "none: open to everybody who reaches the address",
        ),
        ("conversations", f"{conversations['total']}, {conversations['loaded']} of them loaded"),
        ("agents", live),
        ("memory", memory),
        ("admission", admission),
        ("turns", f"{status['turns']['running']} running, {_counts(totals['turns']) or 'none'} ended"),
        *([("usage", _usage(status["usage"]))] if "usage" in status else []),
        *([("descriptors", _descriptors(descriptors))] if descriptors else []),
        ("since start", _counts(totals, "starts", "restarts", "crashes")),
    ]
    return pairs(found, width)


def _walls(walls: Mapping[str, Any]) -> str:
    if walls["obstacle"]:
        return f"{walls['wall']}: {walls['obstacle']}"
    mechanism = walls.get("mechanism")  # a server of an earlier version has none
    return f"{walls['wall']}, by {mechanism}" if mechanism else str(walls["wall"])


def _usage(used: Mapping[str, Any]) -> str:
    return f"{amount(used['tokens'])} tokens, cost {money(used['costs'])}, of the loaded conversations"


def _journal(journal: Mapping[str, Any]) -> str:
    if journal["writable"]:
        return "writable"
    return (
        f"NOT WRITABLE since {journal['since']}: {journal['reason']}; "
        f"{journal['attempts']} attempts, {size(journal['waiting_bytes'])} waiting"
    )


def _descriptors(found: Mapping[str, Any]) -> str:
    shares = (f"{kind} {found[kind]['used']}/{found[kind]['share']}" for kind in DESCRIPTOR_KINDS)
    used = "?" if found["used"] is None else found["used"]
    return f"{used} of {found['limit']}; {', '.join(shares)}, reserve {found['reserve']}"


def _counts(counts: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in names or counts)
