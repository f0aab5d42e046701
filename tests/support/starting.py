"""Starting processes for the terminals of tests, as a conversation would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.agents.containment.marker import ProcessMarker
from supervisor.agents.spawning.spawning import Child, Request, start_child


async def start_process(
    argv: Sequence[str], *, cwd: int, env: Mapping[str, str], stdin: int, output: int
) -> Child:
    request = Request(argv=argv, cwd=cwd, env=env, stdin=stdin, stdout=output, stderr=output)
    return await start_child(request, ProcessMarker())
