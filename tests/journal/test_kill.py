"""SIGKILL: what anybody saw is there, in order, gapless, and the numbers go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import trio

from tests.support.thorough import everyday

CHILD = """
import os, sys, trio
from supervisor.journal.errors import UnknownConversation
from supervisor.journal.rows import Row, Stored
from tests.journal.places import opened_as

async def main():
    async with opened_as(sys.argv[1:]) as journal, trio.open_nursery() as nursery:
        try:
            log = await journal.log("c")
        except UnknownConversation:
            log = await journal.create("c", b"{}", status="idle", created_at="1", updated_at="1")

        async def show():
            cursor = log.subscribe(None)
            while True:
                for item in await cursor.next():
                    os.write(1, b"%d %s\\n" % (item.seq, item.id.encode()))

        nursery.start_soon(show)
        await trio.lowlevel.checkpoint()
        while True:
            for _ in range(7):
                n = log.last_seq + 1
                row = Row(id=f"{journal.epoch}-{n}", kind="K", source="s", timestamp="t", body=b"x" * 300)
                log.append([row])
            await log.room()
            await trio.lowlevel.checkpoint()

trio.run(main)
"""


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_what_was_seen_survives_sigkill(journal_place):
    seen = []
    for life in range(everyday(3, 5)):
        lines = await trio.to_thread.run_sync(one_life, journal_place.arguments(), 0.05 + 0.05 * life)
        assert lines, "the child showed nothing"
        first = int(lines[0][0])
        assert [int(seq) for seq, _ in lines] == list(range(first, first + len(lines)))
        # Durable rows that nobody had been shown yet may lie between two lives.
        assert not seen or first > int(seen[-1][0])
        seen += lines
        async with journal_place.open() as journal:
            log = await journal.log("c")
            stored = await log.read(-1, 100_000)
            assert [item.seq for item in stored] == list(range(len(stored)))
            assert log.last_seq == len(stored) - 1
            names = [item.id for item in stored]
            assert all(names[int(seq)] == name for seq, name in seen)
            # The next number is the one after the last.
            assert all(name.endswith(f"-{seq}") for seq, name in enumerate(names))


def one_life(arguments, seconds):
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
    with child:
        shown = child.stdout.readline()
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        shown += child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    # The last line may be cut in the middle.
    return [line.split() for line in shown.decode().split("\n")[:-1]]
