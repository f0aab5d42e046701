"""The MCP helper inside the test's own process: the SDK, which takes a second to import, is imported once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import trio

from supervisor.conversations.mcp.helper import START_SECONDS, HelperFailed
from supervisor.mcp import helper

MOST_EVENTS = 100  # that nobody has read


class Talk:
    """The helper's own `Talk` and the caller's `Helper` in one: messages become JSON in between."""

    def __init__(self) -> None:
        self._ask, self._asked = trio.open_memory_channel[bytes](MOST_EVENTS)
        self._tell, self._told = trio.open_memory_channel[bytes](MOST_EVENTS)

    # -- as the helper sees it

    async def line(self) -> dict[str, Any] | None:
        async for message in self._asked:
            found: dict[str, Any] = orjson.loads(message)
            return found
        return None

    def tell(self, event: str, **fields: Any) -> None:
        self._tell.send_nowait(orjson.dumps({"event": event, **fields}))

    # -- as the caller sees it

    async def send(self, message: Mapping[str, Any]) -> None:
        await self._ask.send(orjson.dumps(message))

    async def event(self) -> dict[str, Any]:
        async for message in self._told:
            found: dict[str, Any] = orjson.loads(message)
            return found
        raise HelperFailed("the MCP helper process exited early")

    async def done(self) -> dict[str, Any]:
        while (event := await self.event()).get("event") != "done":
            pass
        return event

    def end(self) -> None:
        self._tell.close()


_talk: ContextVar[Talk] = ContextVar("_talk")


@contextlib.asynccontextmanager
async def run_inside(
    request: Mapping[str, Any], *, environment: Mapping[str, str], cwd: Path
) -> AsyncIterator[Talk]:
    """What `run_helper` does. The helper's `main` runs here; only its pipes are not."""
    talk = Talk()

    async def run() -> None:
        _talk.set(talk)
        try:
            await helper.main()
        finally:
            talk.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await talk.send(request)
        yield talk
        nursery.cancel_scope.cancel()


async def ask_inside(
    request: Mapping[str, Any], *, environment: Mapping[str, str], cwd: Path, seconds: float
) -> dict[str, Any]:
    """What `ask_helper` returns."""
    with trio.fail_after(seconds + START_SECONDS):
        async with run_inside({**request, "timeout": seconds}, environment=environment, cwd=cwd) as talk:
            return await talk.done()
    raise AssertionError


@contextlib.contextmanager
def helpers_inside(*, logins: bool = False) -> Iterator[None]:
    """Helpers that answer once start no process meanwhile; those of logins keep theirs, but for `logins`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(helper, "Talk", _talk.get))
        for caller in ("probe", "logins"):
            name = f"supervisor.conversations.mcp.{caller}.ask_helper"
            stack.enter_context(mock.patch(name, ask_inside))
        if logins:
            stack.enter_context(mock.patch("supervisor.conversations.mcp.probe.run_helper", run_inside))
        yield
