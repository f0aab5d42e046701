"""Moments of Trio's clock as dates."""

from __future__ import annotations

import time

import pytest
import trio

from gateway.api.requests.timestamps import Clock


def test_dates_follow_when_the_wall_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock()
        moment = trio.current_time()
        first = clock.date(moment)
        assert clock.date(moment) == first  # a moment has one date
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 3600)
        assert clock.date(trio.current_time())[:13] != first[:13]

    trio.run(main)
