"""The tools of the built-in agent that can be used on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Final

import attrs
import trio

from supervisor.agents.sdk_facts import known
from supervisor.patience import PathTimeout, in_time

TOOLS_SECONDS: Final = 10.0
"""Seconds for which the usable tools are cached: the route needs no key, and computing them reads HOME and
PATH."""

LOOKING_THREADS: Final = 1
"""Threads that look for a browser. One that hangs blocks only further look-ups, not other work."""


@attrs.define(eq=False)
class UsableTools:
    """The tools of the built-in agent; none before a disk that hangs has answered once."""

    environ: Mapping[str, str]
    _tools: list[str] = attrs.field(factory=list, init=False)
    _looked: float = attrs.field(default=-inf, init=False)
    # Its own: one of the module would stay taken after a run of Trio that a look outlives.
    _looking: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(LOOKING_THREADS), init=False
    )

    async def __call__(self) -> list[str]:
        """Their names, looked up again after TOOLS_SECONDS."""
        if trio.current_time() - self._looked > TOOLS_SECONDS:
            with suppress(PathTimeout):
                self._tools = await in_time(
                    lambda: known().usable(self.environ), "to look for a browser", limiter=self._looking
                )
            self._looked = trio.current_time()
        return self._tools
