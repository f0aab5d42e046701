"""The MCP helper inside the test's own process: the SDK, which takes a second to import, is imported once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import trio

from supervisor.mcp import helper


async def ask_inside(
    request: Mapping[str, Any], *, environment: Mapping[str, str], cwd: Path, seconds: float
) -> dict[str, Any]:
    """What `ask_helper` returns. The helper's `main` runs here; only its pipes are not."""
    told: list[dict[str, Any]] = []

    class Talk:
        def __init__(self) -> None:
            self.asked = [orjson.loads(orjson.dumps({**request, "timeout": seconds}))]

        async def line(self) -> Any:
            if not self.asked:
                await trio.sleep_forever()
            return self.asked.pop()

        def tell(self, event: str, **fields: Any) -> None:
            told.append(orjson.loads(orjson.dumps({"event": event, **fields})))

    with mock.patch.object(helper, "Talk", Talk):
        await helper.main()
    assert told[-1]["event"] == "done"
    return told[-1]


@contextlib.contextmanager
def helpers_inside() -> Iterator[None]:
    """Helpers that answer once start no process meanwhile. A login keeps its own."""
    with (
        mock.patch("supervisor.conversations.mcp.probe.ask_helper", ask_inside),
        mock.patch("supervisor.conversations.mcp.logins.ask_helper", ask_inside),
    ):
        yield
