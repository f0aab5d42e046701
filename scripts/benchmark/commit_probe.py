"""How long a commit takes while the Trio loop is saturated: run by the interpreter of what is measured.

    python scripts/benchmark/commit_probe.py DIRECTORY SECONDS

One task keeps the loop busy with Python, in slices as relays take them, and never waits. Another one appends
an event every few milliseconds, and waits until it is durable. Prints the milliseconds of each as JSON: they
have the writer's wait for the GIL in them, the transaction, and the way back through the busy loop.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import trio

from supervisor.events import new_event_id, timestamp_now
from supervisor.journal.journal import open_journal
from supervisor.journal.rows import Row

SLICE_SECONDS = 0.002
PAUSE_SECONDS = 0.005
SWITCH_SECONDS = 0.0005
"""As `ostler serve` has it (`gateway/serving/server.py`)."""
BODY = b'{"text":"%b"}' % (b"x" * 500)


async def saturate() -> None:
    """Slices of work, one after the other."""
    while True:
        end = time.perf_counter() + SLICE_SECONDS
        while time.perf_counter() < end:
            sum(range(50))
        await trio.lowlevel.checkpoint()


async def measure(directory: Path, seconds: float) -> list[float]:
    """Milliseconds from each append until it is durable."""
    found: list[float] = []
    async with open_journal(directory / "probe.sqlite") as journal, trio.open_nursery() as nursery:
        now = timestamp_now()
        log = await journal.create("probe", b"{}", status="idle", created_at=now, updated_at=now)
        nursery.start_soon(saturate)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begin = time.perf_counter()
            log.append(
                [Row(id=new_event_id(), kind="Probe", source="agent", timestamp=timestamp_now(), body=BODY)]
            )
            await log.flushed()
            found.append((time.perf_counter() - begin) * 1000)
            await trio.sleep(PAUSE_SECONDS)
        nursery.cancel_scope.cancel()
    return found


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_SECONDS)
    print(json.dumps(trio.run(measure, Path(sys.argv[1]), float(sys.argv[2]))))
