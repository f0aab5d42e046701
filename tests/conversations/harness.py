"""A supervisor with a journal of its own, for tests: real agent processes, no gateway."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import orjson
import trio
from trio.testing import MockClock

from supervisor import Supervision
from supervisor import open as front_door
from supervisor.agents.limits.values import NO_LIMITS, AgentLimits
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.recording.bounds.attachments import Allowance
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.start import StartRequest
from supervisor.conversations.supervisor import Supervisor
from supervisor.credentials.external_sources import FoundSecret
from supervisor.events import Message, TextContent, Vocabulary
from supervisor.hooks.config import HookSource
from supervisor.settings.agent import AgentSettings
from supervisor.settings.exposure import ENCRYPTED_START
from supervisor.settings.storage.store import SettingsStore
from tests.support.scripted import ScriptedLog, scripted_command

PATIENCE_SECONDS = 20.0
"""For anything that has to happen: far more than it takes on a busy machine; only a bug uses it up."""

LOOK_SECONDS = (0.004, 0.02)
"""Between two looks at what a test waits for: the first ones, and after some."""

AT_ONCE = RestartPolicy(first_pause=0.0)
"""Restarts without pauses, for tests of anything else."""

QUICK = Deadlines(interrupt_answer=0.5, cancel_grace=0.5, initialize=5, new_session=5, load_session=5)


SEALED = f"{ENCRYPTED_START}-sealed:"


class NoCipher:
    """Encryption is tested elsewhere: its tokens show what they hold."""

    def encrypt(self, data: bytes) -> str:
        return SEALED + data.decode()

    def decrypt(self, token: str) -> bytes:
        assert token.startswith(SEALED)
        return token.removeprefix(SEALED).encode()


def say(text: str) -> Message:
    return Message(role="user", content=(TextContent(text=text),))


@attrs.frozen
class GivenSecrets:
    """Secrets that a test holds in a dict of its own, and may change."""

    values_by_name: dict[str, str]
    cipher: NoCipher = attrs.field(factory=NoCipher)

    async def values(self) -> Mapping[str, str]:
        return dict(self.values_by_name)

    async def found(self) -> Mapping[str, FoundSecret]:
        return {}

    async def exchange(self, name: str, value: str, replaceable: Callable[[str], bool]) -> bool:
        given = self.values_by_name
        if name not in given or given[name] == value or not replaceable(given[name]):
            return False
        given[name] = value
        return True


@attrs.define
class Harness:
    supervisor: Supervisor
    root: Path
    secrets: dict[str, str]
    settings: SettingsStore

    @property
    def log(self) -> ScriptedLog:
        return ScriptedLog(self.root / "scripted.log")

    async def listed(self, *, order: str = "created_at", limit: int = 10) -> list[dict[str, Any]]:
        """The first page of all conversations."""
        page = await self.supervisor.listing(status=None, order=order, page=None, limit=limit)
        infos: list[dict[str, Any]] = orjson.loads(b"[%b]" % page.bodies)
        return infos

    def agent(self, *modes: str, **settings: Any) -> AgentSettings:
        command = scripted_command(*modes, log=self.root / "scripted.log", home=self.root / "scripted-home")
        return AgentSettings(acp_server="custom", acp_command=tuple(command), **settings)

    async def start(
        self, *modes: str, vocabulary: Vocabulary = Vocabulary.EXTENDED, **fields: Any
    ) -> Conversation:
        settings = fields.pop("settings", {})
        workspace = self.root / "workspace"
        request = StartRequest(
            working_dir=str(workspace),
            agent=self.agent(*modes, **settings),
            spelled_out=True,
            event_vocabulary=vocabulary,
            **fields,
        )
        conversation, created = await self.supervisor.create(request)
        assert created
        return conversation


@asynccontextmanager
async def open_harness(
    root: Path,
    *,
    deadlines: Deadlines = QUICK,
    secrets: dict[str, str] | None = None,
    restart: RestartPolicy = AT_ONCE,
    limits: Limits | None = None,
    clock: MockClock | None = None,
    drain_seconds: float = 0.0,
    path: str = "/usr/bin:/bin",
    allowance: Allowance | None = None,
    hooks: HookSource = HookSource.REQUEST,
    home: Path | None = None,
    spares: Mapping[str, int] | None = None,
    keep_updates: bool = True,
    agent_limits: AgentLimits = NO_LIMITS,
) -> AsyncIterator[Harness]:
    """A supervisor for the block; `home` is that of whoever runs it (`root`).

    A clock that the test moves by hand runs by itself at the end, so that an agent that keeps still can be
    waited for and ended.
    """
    given = GivenSecrets(secrets if secrets is not None else {})
    async with front_door(
        root,
        environ={"PATH": path, "HOME": str(home or root), "SECRET_OF_THE_SERVER": "x"},
        supervision=Supervision(
            deadlines=deadlines,
            restart=restart,
            limits=limits or Limits(),
            drain_seconds=drain_seconds,
            allowance=allowance or Allowance(),
            hooks=hooks,
            keep_updates=keep_updates,
            warm_processes=spares or {},
            agent_limits=agent_limits,
        ),
        containment=None,
        secrets=given,
    ) as ostler:
        try:
            yield Harness(ostler.supervisor, root, given.values_by_name, ostler.settings)
        finally:
            if clock is not None:
                clock.rate = 20.0


def killed_now(root: Path) -> Path:
    """What a server leaves that is killed now: the root of the next one."""
    (root / "next").mkdir()
    with (
        contextlib.closing(sqlite3.connect(root / "journal.sqlite3")) as source,
        contextlib.closing(sqlite3.connect(root / "next" / "journal.sqlite3")) as copy,
    ):
        source.backup(copy)
    return root / "next"


async def events(conversation: Conversation) -> list[dict[str, Any]]:
    """Every journalled event, oldest first."""
    await conversation.log.flushed()
    found: list[dict[str, Any]] = []
    seq = -1
    while page := await conversation.log.read(seq, 500):
        found += [orjson.loads(item.body) for item in page]
        seq = page[-1].seq
    return found


async def until(check: Any, what: str = "it") -> Any:
    """Wait for a condition that is looked at often. In real time, whatever clock Trio has: real processes
    are at work. What takes longer is looked at less often, since each look is work, too."""
    end = time.monotonic() + PATIENCE_SECONDS
    pause = LOOK_SECONDS[0]
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        await trio.to_thread.run_sync(time.sleep, pause)
        pause = min(pause * 1.3, LOOK_SECONDS[1])
    raise AssertionError(f"{what} did not happen within {PATIENCE_SECONDS} s")


def ready_pid(conversation: Conversation) -> int | None:
    """Process id of the agent that can take a prompt."""
    run = conversation.agent.ready
    return None if run is None else run.pid


async def speaking(conversation: Conversation) -> None:
    """The agent has begun to say something that is no event yet."""
    await until(lambda: conversation.runner.turns._translator._speech.segment, "a word of the agent")


async def calling(conversation: Conversation) -> None:
    """A tool call of the agent's is open and recorded; it is held for a moment first."""
    translator = conversation.runner.turns._translator
    await until(lambda: any(call.started_id for call in translator._calls.values()), "a tool call")


def become(conversation: Conversation, **changes: Any) -> None:
    """Change the state of a conversation to one that a test needs, without a cause."""
    conversation.record.now = attrs.evolve(conversation.record.now, **changes)


async def settled(conversation: Conversation) -> str:
    """The status once the run is over."""
    await until(
        lambda: not conversation.busy and conversation.record.now.execution_status != "running",
        "the end of a run",
    )
    await conversation.log.flushed()
    return conversation.record.now.execution_status


async def turn(conversation: Conversation, text: str) -> list[dict[str, Any]]:
    """Send a message and give the events that came of it."""
    before = conversation.log.last_seq
    await conversation.send(say(text), run=True)
    await settled(conversation)
    return (await events(conversation))[before + 1 :]


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """The kinds of events, states left out."""
    return [event["kind"] for event in found if event["kind"] != "ConversationStateUpdateEvent"]


def states(found: list[dict[str, Any]], key: str) -> list[Any]:
    return [event["value"] for event in found if event.get("key") == key]


def answer(found: list[dict[str, Any]]) -> str:
    """The text of the (last) finish action."""
    return [
        event["action"]["message"]
        for event in found
        if (event.get("action") or {}).get("kind") == "FinishAction"
    ][-1]


def one(found: list[dict[str, Any]], kind: str, source: str | None = None) -> dict[str, Any]:
    matching = [e for e in found if e["kind"] == kind and source in (None, e["source"])]
    assert len(matching) == 1, [event["kind"] for event in found]
    return matching[0]
