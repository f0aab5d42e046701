"""The costliest messages that an agent can send, and how long they hold up everything else."""

from __future__ import annotations

import time

import pytest
import trio

from tests.conversations.harness import answer, open_harness, say, settled, turn

HELD_UP_S = 1.0
"""Far above what is aimed at (50 ms), for machines that are busy; far below what one such frame once took
(5 to 17 s)."""

KINDS = (
    "text",
    "escapes",
    "codes",
    "pairs",
    "utf8",
    "base64",
    "brackets",
    "lists",
    "objects",
    "keys",
    "floats",
    "strings",
    "deep",
    "repaired",
    "numbers",
    "unmended",
    "heavy",
)


class Probe:
    """How long the loop was held up at most, for a task that wants to run every millisecond.

    In the time of the processor, so that other processes do not count."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            begun = time.process_time()
            await trio.sleep(0.001)
            self.longest = max(self.longest, time.process_time() - begun)


@pytest.mark.guarantee(name="no-agent-starves-the-others")
@pytest.mark.parametrize(
    "secrets", [{}, {"TOKEN": "tok-1234567890abcdef", "OTHER": "s" * 40}], ids=["", "masked"]
)
async def test_no_frame_holds_up_the_others(tmp_path, secrets):
    async with open_harness(tmp_path, secrets=secrets) as harness, trio.open_nursery() as nursery:
        sender, other = await harness.start(), await harness.start()
        await turn(other, "hello")
        await turn(sender, "hello")
        await other.send(say("!slow 100000 5"), run=True)
        for kind in KINDS:
            probe = Probe()
            with trio.CancelScope() as probing:
                nursery.start_soon(probe.run)
                found = await turn(sender, f"!worst {kind}\nafterwards")
            del probing
            print(f"{kind}: {probe.longest * 1000:.1f} ms")
            assert answer(found).endswith("echo: afterwards "), kind
            assert probe.longest < HELD_UP_S, kind
        await other.interrupt()
        await settled(other)
        nursery.cancel_scope.cancel()
