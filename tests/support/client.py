"""The REST interface as a client sees it, with the waits that tests need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POLL_S = 0.02
POLL_MOST_S = 0.15
POLL_SHARE = 0.1  # of the time that was waited already: to ask costs some milliseconds of the processor
REQUEST_TIMEOUT_S = 60.0
PAGE_LIMIT = 100  # the most that events/search gives at once
SETTLED = ("finished", "error", "paused", "stuck", "waiting_for_confirmation")

Json = Any


class Rest:
    """One conversation server. Every call fails the test on a status that was not expected."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.http = client

    async def call(
        self, method: str, path: str, body: Json = None, *, expect: int | Sequence[int] = (200, 201)
    ) -> Json:
        """The decoded JSON of the answer (None when it is empty)."""
        response = await self.http.request(method, path, json=body)
        wanted = (expect,) if isinstance(expect, int) else expect
        assert response.status_code in wanted, (
            f"{method} {path}: {response.status_code} {response.text[:2000]}"
        )
        return response.json() if response.content else None

    # -- settings
    async def put_secrets(self, secrets: dict[str, str]) -> None:
        for name, value in secrets.items():
            await self.call("PUT", "/api/settings/secrets", {"name": name, "value": value})

    # -- conversations
    async def create(self, workspace: Path, agent: dict[str, Json] | None = None, **fields: Json) -> Json:
        """ConversationInfo; `agent` are ACP agent settings (agent_kind is added), None takes the server's."""
        body = {"workspace": {"kind": "LocalWorkspace", "working_dir": str(workspace)}, **fields}
        if agent is not None:
            body["agent_settings"] = {"agent_kind": "acp", **agent}
        return await self.call("POST", "/api/conversations", body, expect=(200, 201))

    async def info(self, conversation: str) -> Json:
        return await self.call("GET", f"/api/conversations/{conversation}")

    async def status(self, conversation: str) -> str:
        return str((await self.info(conversation))["execution_status"])

    async def send(self, conversation: str, text: str, *, run: bool = True) -> None:
        body = {"role": "user", "content": [{"type": "text", "text": text}], "run": run}
        await self.call("POST", f"/api/conversations/{conversation}/events", body)

    async def act(self, conversation: str, action: str, body: Json = None) -> Json:
        """POST to run, pause, interrupt, ..."""
        return await self.call("POST", f"/api/conversations/{conversation}/{action}", body or {})

    async def respond(self, conversation: str, *, accept: bool, reason: str | None = None) -> None:
        body: dict[str, Json] = {"accept": accept}
        if reason:
            body["reason"] = reason
        await self.act(conversation, "events/respond_to_confirmation", body)

    # -- events
    async def events(self, conversation: str) -> list[Json]:
        """The whole log, oldest first, in the by-id form (nulls present)."""
        found: list[Json] = []
        page: str | None = None
        while True:
            query = f"limit={PAGE_LIMIT}" + (f"&page_id={page}" if page else "")
            answer = await self.call("GET", f"/api/conversations/{conversation}/events/search?{query}")
            found += answer["items"]
            page = answer["next_page_id"]
            if page is None:
                return found

    async def count(self, conversation: str) -> int:
        """How many events there are."""
        return int(await self.call("GET", f"/api/conversations/{conversation}/events/count"))

    async def events_by_id(self, conversation: str, ids: Sequence[str]) -> list[Json]:
        return list(await self.call("GET", f"/api/conversations/{conversation}/events", list(ids)))

    async def wait_status(self, conversation: str, *wanted: str, timeout: float = 30.0) -> str:
        """Wait until the conversation is in one of these states; beware of the state before a turn began."""
        seen: list[str] = []

        async def look() -> str | None:
            status = await self.status(conversation)
            seen[:] = [status]
            return status if status in wanted else None

        return str(await self._poll(look, timeout, lambda: f"status {seen}, wanted {wanted}"))

    async def turn(
        self, conversation: str, text: str, *, wanted: Sequence[str] = ("finished",), timeout: float = 30.0
    ) -> list[Json]:
        """Send a message with run, wait until the turn has settled; the events from the message on.

        Fails when it settles in a state that is not `wanted`.
        """
        before = await self.count(conversation)
        await self.send(conversation, text)
        return await self.settle(conversation, before, wanted=wanted, timeout=timeout)

    async def settle(
        self,
        conversation: str,
        before: int,
        *,
        wanted: Sequence[str] = ("finished",),
        timeout: float = 30.0,
    ) -> list[Json]:
        """Wait until the events after the first `before` ones end in a settled state; those events."""
        tail = Tail(self, conversation, before)

        async def look() -> bool:
            await tail.read()
            states = [e["value"] for e in tail.fresh if e.get("key") == "execution_status"]
            return bool(states) and states[-1] in SETTLED and await self.status(conversation) == states[-1]

        await self._poll(look, timeout, lambda: f"unsettled: {summary(tail.fresh)}")
        status = await self.status(conversation)
        assert status in wanted, f"settled as {status}, wanted {wanted}: {summary(tail.fresh)}"
        return tail.fresh

    async def _poll(self, look: Callable[[], Any], timeout: float, why: Callable[[], str]) -> Any:
        begin = time.monotonic()
        while True:
            found = await look()
            if found:
                return found
            waited = time.monotonic() - begin
            assert waited < timeout, f"after {timeout} s: {why()}"
            await trio.sleep(min(max(POLL_S, POLL_SHARE * waited), POLL_MOST_S))


class Tail:
    """The events after the first `before` ones, read again and again at little cost: their number while there
    are no more, and then the last page."""

    def __init__(self, rest: Rest, conversation: str, before: int) -> None:
        self._rest, self._conversation, self._before = rest, conversation, before
        self._read: list[Json] = []
        self._page: tuple[int, str | None] = (0, None)  # where the last page begins, and its id

    @property
    def fresh(self) -> list[Json]:
        return self._read[self._before :]

    async def read(self) -> None:
        if await self._rest.count(self._conversation) <= len(self._read):
            return
        begin, page = self._page
        del self._read[begin:]
        while True:
            query = f"limit={PAGE_LIMIT}" + (f"&page_id={page}" if page else "")
            answer = await self._rest.call(
                "GET", f"/api/conversations/{self._conversation}/events/search?{query}"
            )
            self._page = (len(self._read), page)
            self._read += answer["items"]
            page = answer["next_page_id"]
            if page is None:
                return


def summary(events: Sequence[Json]) -> list[str]:
    """One short line per event, for failure messages."""
    lines = []
    for event in events:
        detail = event.get("detail") or event.get("title") or event.get("error") or ""
        if event["kind"] == "ConversationStateUpdateEvent":
            detail = f"{event.get('key')}={str(event.get('value'))[:60]}"
        lines.append(f"{event['kind']} {detail}"[:300].strip())
    return lines


def answer_text(events: Sequence[Json]) -> str:
    """What the agent said in these events: its messages and the final answer, in order."""
    parts = []
    for event in events:
        if event["kind"] == "MessageEvent" and event["source"] == "agent":
            parts += [block.get("text", "") for block in event["llm_message"]["content"]]
        elif event["kind"] == "ActionEvent" and (event.get("action") or {}).get("kind") == "FinishAction":
            parts.append(event["action"]["message"])
    return "\n".join(parts)


def of_kind(events: Sequence[Json], kind: str) -> list[Json]:
    return [event for event in events if event["kind"] == kind]


@asynccontextmanager
async def rest_client(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[Rest]:
    """A client for the server at `url`; proxies of the environment are not used."""
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False
    ) as client:
        yield Rest(client)
