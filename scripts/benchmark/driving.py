"""What several cases do with a server: warm conversations, turns, bursts."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from scripts.benchmark.cases import Target
from scripts.benchmark.client import FINISHED, RECEIVE_BYTES, WAIT_SECONDS, BenchError, Socket, read_until
from scripts.benchmark.servers import Server

TURN = "!text done"
ASKED_AT_ONCE = 8
"""Clients that ask at the same time."""
TAIL_BYTES = 512
"""Of what a socket got last: the word that a turn is finished is shorter."""


def turn(server: Server, conversation: str, reader: Socket, text: str = TURN) -> float:
    """Milliseconds from the sending of a message to the word that it is finished, on the socket."""
    begin = time.perf_counter()
    server.say(conversation, text)
    read_until([reader])
    return (time.perf_counter() - begin) * 1000


def warmed(server: Server, *, usage: bool = True) -> str:
    """A conversation whose agent is running: it has had a turn. `usage`: the agent reports it."""
    conversation = server.conversation(usage=usage)
    reader = Socket(server.client.port, conversation)
    turn(server, conversation, reader)
    reader.close()
    return conversation


def warm(target: Target, count: int, seconds: float = WAIT_SECONDS) -> list[str]:
    """So many conversations of the standing server whose agents are running: those of before, and new ones.

    Fewer, when that takes longer than so many seconds.
    """
    server = target.standing()
    until = time.monotonic() + seconds

    def one(_: int) -> str | None:
        return None if time.monotonic() > until else warmed(server)

    missing = count - len(target.warm)
    if missing > 0:
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            target.warm += [made for made in pool.map(one, range(missing)) if made is not None]
    return target.warm[:count]


def say_all(
    server: Server,
    conversations: Sequence[str],
    text: str,
    readers: Sequence[Socket],
    seen: Callable[[bytes, int], object] = lambda frame, arrival: None,
) -> None:
    """Send the message to all of them at the same time, and read until all have finished with it."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        asked = [pool.submit(server.say, each, text) for each in conversations]

        def check() -> None:
            for each in asked:
                if each.done():
                    each.result()  # a refusal ends the wait

        read_until(readers, seen, check=check)
        for each in asked:
            each.result()


def said(end: bytes) -> str:
    """The reason in a close frame, which is the last that a socket got (RFC 6455, section 5.5.1)."""
    _, _, reason = end.rpartition(b"\x88")
    return reason[3:].decode(errors="replace")


def drain(sockets: Sequence[Socket], kind: bytes) -> int:
    """Read sockets until each has told of a finished turn, without looking at frames: many cost little so.

    Return when the last event of that kind arrived, in nanoseconds of the monotonic clock.
    """
    tails = {each.socket: each.rest() for each in sockets}
    last = 0
    with selectors.DefaultSelector() as selector:
        for each in tails:
            selector.register(each, selectors.EVENT_READ)
        until = time.monotonic() + WAIT_SECONDS
        while selector.get_map():
            if time.monotonic() > until:
                raise BenchError(f"not finished after {WAIT_SECONDS:g} s")
            for key, _ in selector.select(1.0):
                each = cast(socket.socket, key.fileobj)
                data = each.recv(RECEIVE_BYTES)
                if not data:
                    raise BenchError(f"closed a socket: {said(tails[each])}")
                if kind in data:
                    last = time.monotonic_ns()
                tail = tails[each] + data
                if FINISHED in tail:
                    selector.unregister(each)
                tails[each] = tail[-TAIL_BYTES:]
    return last
