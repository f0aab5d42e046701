"""A gateway over a real journal and real stores, with conversations that only do what a test tells them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx2
import orjson
import pytest
import trio
from quart_trio import QuartTrio

from gateway.api.app import create_app
from gateway.api.contract import Machines
from gateway.api.mcp_jobs import open_jobs
from gateway.api.routing import MatchingRule
from gateway.api.services import Services
from gateway.configuration.config import Config
from gateway.http.listener import bind, serve_connections, url_of
from gateway.serving import logs
from supervisor.acp import TraceLine
from supervisor.agents.catalog import load_catalog
from supervisor.composition import LateCipher
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.lifecycle.last_output import Fresh, Mark
from supervisor.conversations.children import Worktrees
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.history import prompt
from supervisor.conversations.history.history import final_response
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.mcp.logins import McpLogins
from supervisor.conversations.mcp.probe import McpProbe
from supervisor.conversations.overview import Overview
from supervisor.conversations.recording.agent_updates import AgentUpdates
from supervisor.conversations.resource.resource import conversation_info
from supervisor.conversations.state.errors import (
    AgentFailure,
    AlreadyRunning,
    AtCapacity,
    InvalidStart,
    ModelRefused,
    UnknownConversation,
)
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.conversations.state.start import StartRequest, choose_vocabulary
from supervisor.conversations.state.state import State
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.state.turn import FileReader
from supervisor.conversations.updates import UpdateReader
from supervisor.conversations.views import AgentView, Figures, WarmProcessView
from supervisor.credentials.source import LookupSecret
from supervisor.credentials.store import SecretStore
from supervisor.documents.files import FileDocuments
from supervisor.events import Event, Message, MessageEvent, dump_event, new_event_id, timestamp_now
from supervisor.journal.journal import Journal, open_journal
from supervisor.journal.log import Log
from supervisor.journal.rows import Listing, Row
from supervisor.machines.errors import OwnedElsewhere, Place
from supervisor.mcp.logins import LoginStore
from supervisor.mcp.server import server_errors
from supervisor.settings.agent import AgentSettings
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.storage.store import SettingsStore
from supervisor.workspace.commands.bash import open_bash
from tests.support.answers import Answers

PRESETS = {
    "demo": ("demo-agent",),
    "claude-code": ("npx", "-y", "claude-agent"),
    "codex": ("npx", "-y", "codex-acp"),
}


class FakeConversation:
    """Records what is asked of it; its log is a real one."""

    def __init__(self, request: StartRequest, conversation_id: str, log: Log) -> None:
        self.id = conversation_id
        self.request = request
        self.log = log
        self.vocabulary = choose_vocabulary(request, None)
        self.title = request.title
        self.tags = dict(request.tags)
        self.policy = dict(request.confirmation_policy)
        self.secrets = dict(request.secrets)
        self.analyzer = request.security_analyzer
        self.status = "idle"
        self.calls: list[Any] = []
        self.capacity = True
        self.takes: list[str] | None = None
        self.failure: Exception | None = None
        self.created_at = timestamp_now()
        self.updates = AgentUpdates(log)

    def follow_updates(self, after: str | None) -> UpdateReader:
        return UpdateReader(self.log, self.updates, after)

    def info(self) -> dict[str, Any]:
        record = ConversationRecord(
            id=self.id,
            start=Start(
                working_dir=self.request.working_dir,
                created_at=self.created_at,
                vocabulary=self.vocabulary,
                launched_agent_profile=self.request.launched_agent_profile,
                parent_conversation_id=self.request.parent_conversation_id,
            ),
            updated_at=self.created_at,
            agent=self.request.agent or AgentSettings(acp_server="custom", acp_command=("agent",)),
            title=self.title,
            tags=self.tags,
            now=State(execution_status=ExecutionStatus(self.status)),
            confirmation_policy=self.policy,
            security_analyzer=self.analyzer,
            extra=self.request.extra,
        )
        return conversation_info(kind_of(record), Path("/state/data"))

    async def durable_info(self) -> dict[str, Any]:
        await self.log.flushed()
        return self.info()

    async def durable_state(self) -> bytes:
        await self.log.flushed()
        return self.full_state()

    def full_state(self) -> bytes:
        return orjson.dumps(
            {
                "id": new_event_id(),
                "timestamp": timestamp_now(),
                "source": "environment",
                "key": "full_state",
                "value": {"execution_status": self.status, "events": self.log.last_seq + 1},
                "kind": "ConversationStateUpdateEvent",
            }
        )

    def append(self, *events: Event) -> list[str]:
        """Append events; the first one takes the updates that wait, as the recorder does it."""
        rows = [row_of(event, self) for event in events]
        if rows:
            rows[0].updates = self.updates.pending()
        self.log.append(rows)
        self.updates.clear()
        return [event.id for event in events]

    async def record(self, *events: Event) -> list[str]:
        ids = self.append(*events)
        await self.log.flushed()
        return ids

    def not_taken(self, message: Message) -> list[tuple[int, str]]:
        return [] if self.takes is None else prompt.not_taken(message, self.takes)

    async def withdraw(self, message_id: str) -> None:
        self.calls.append(("withdraw", message_id))

    async def start_agent(self) -> None:
        self.calls.append(("start_agent",))

    def offered(self) -> dict[str, Any]:
        return {}

    async def send(
        self,
        message: Message,
        *,
        run: bool,
        sender: str | None = None,
        reads: FileReader | None = None,
        event_id: str | None = None,
    ) -> str:
        if event_id is not None and await self.log.get(event_id) is not None:
            return event_id
        self.calls.append(("send", message, run))
        event_id = event_id or new_event_id()
        await self.record(MessageEvent(id=event_id, source="user", llm_message=message))
        if run and not self.capacity:
            raise AtCapacity("Too many conversations are running; the message is saved", 4.2)
        return event_id

    async def run(self) -> None:
        self.calls.append("run")
        if self.status == "running":
            raise AlreadyRunning("Conversation already running. Wait for completion or pause first.")

    async def pause(self) -> None:
        self.calls.append("pause")

    async def interrupt(self) -> None:
        self.calls.append("interrupt")

    async def respond(
        self, accept: bool, reason: str, request_id: str | None = None, option_id: str | None = None
    ) -> None:
        chosen = tuple(each for each in (request_id, option_id) if each is not None)
        self.calls.append(("respond", accept, reason, *chosen))
        if self.failure is not None:
            raise self.failure

    async def final_response(self) -> str:
        return await final_response(self.log)

    @property
    def changes(self) -> FakeConversation:
        return self

    async def set_title(self, title: str) -> None:
        self.title = title

    async def set_tags(self, tags: dict[str, str]) -> None:
        self.tags = tags

    async def set_confirmation_policy(self, policy: dict[str, Any]) -> None:
        self.policy = policy

    async def set_security_analyzer(self, analyzer: dict[str, Any] | None) -> None:
        self.analyzer = analyzer

    async def set_secrets(self, secrets: Mapping[str, str | LookupSecret]) -> None:
        self.secrets.update(secrets)

    def _asked(self, *call: Any) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure

    async def navigate(self, event_id: str | None) -> None:
        self._asked("navigate", event_id)

    async def ask_agent(self, question: str) -> str:
        self._asked("ask", question)
        return f"You asked: {question}"

    async def switch_model(self, model: str) -> None:
        self._asked("model", model)

    async def choose_mode(self, mode: str) -> None:
        self._asked("mode", mode)

    async def choose_option(self, option_id: str, value: str | bool) -> None:
        self._asked("option", option_id, value)

    async def condense(self) -> None:
        self._asked("condense")

    async def load_plugin(self, plugin_ref: str) -> None:
        self._asked("plugin", plugin_ref)

    async def switch_llm(self, llm: Mapping[str, Any]) -> None:
        self._asked("llm", llm)

    async def start_goal(self, objective: str, max_iterations: int) -> None:
        self._asked("goal", objective, max_iterations)

    async def stop_goal(self) -> None:
        self._asked("stop goal")

    async def resume_goal(self) -> None:
        self._asked("resume goal")


def row_of(event: Event, conversation: FakeConversation) -> Row:
    return Row(
        id=event.id,
        kind=event.kind,
        source=event.source,
        timestamp=event.timestamp,
        body=dump_event(event, conversation.vocabulary),
    )


def agent_view(conversation_id: str, **fields: Any) -> AgentView:
    """An agent in the middle of a turn."""
    plain = {
        "title": "Fix the parser",
        "provider": "demo",
        "name": "Demo agent",
        "version": "1.2.3",
        "pid": 4711,
        "state": "running",
        "execution_status": "running",
        "memory": "resumed",
        "uptime": 192.5,
        "restarts": 1,
        "last_exit": "killed by SIGKILL",
        "idle": None,
        "rss_bytes": 300 * 1024 * 1024,
        "cpu_seconds": 61.0,
        "processes": 3,
        "containment": "tree",
        "walls": "off",
        "walls_mechanism": None,
        "queue": 2,
    }
    return AgentView(conversation_id=conversation_id, **{**plain, **fields})


FIGURES = Figures(
    live_agents=3,
    starting=1,
    queued=2,
    hibernated=4,
    parked=1,
    turns_running=2,
    conversations_loaded=7,
    starts_total=20,
    restarts_total=5,
    crashes_total=6,
    turns_total={"end_turn": 30, "cancelled": 2},
    rss_bytes=900 * 1024 * 1024,
    limit_agents=8,
    limit_memory_bytes=None,
)


class FakeSupervisor:
    """Keeps the gateway's contract (gateway/api/contract.py): mypy checks this module."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.conversations: dict[str, FakeConversation] = {}
        self.elsewhere: dict[str, tuple[Place, FakeConversation]] = {}
        """Those of other servers, and where they are."""
        self.failure: Exception | None = None
        self.views: dict[str, AgentView] = {}
        self.warm_views: list[WarmProcessView] = []
        self.calls: list[Any] = []
        self.lines: list[str] = []
        self.frames: list[TraceLine] = []
        self.deleting: Callable[[str], Awaitable[None]] = self.delete
        self.epoch = object()
        self.dropped = 0
        """Lines before these."""

    prepared = True

    @property
    def overview(self) -> Overview:
        raise NotImplementedError  # tests/conversations/test_overview.py has a real one

    async def prepare(self) -> None:
        await trio.lowlevel.checkpoint()

    def add_agent(self, conversation_id: str, **fields: Any) -> None:
        self.views[conversation_id] = agent_view(conversation_id, **fields)

    async def agents(self) -> list[AgentView]:
        return list(self.views.values())

    async def warm_processes(self) -> list[WarmProcessView]:
        return list(self.warm_views)

    async def agent(self, conversation_id: str) -> AgentView:
        self._require_here(conversation_id)
        if conversation_id not in self.views:
            raise UnknownConversation(f"Conversation not found: {conversation_id}")
        return self.views[conversation_id]

    async def restart_agent(self, conversation_id: str, *, force: bool = False) -> None:
        await self.agent(conversation_id)
        self.calls.append(("restart", conversation_id, force))
        if self.failure is not None:
            raise self.failure

    async def stop_agent(self, conversation_id: str) -> None:
        await self.agent(conversation_id)
        self.calls.append(("stop", conversation_id))

    async def stderr(self, conversation_id: str) -> list[str]:
        await self.agent(conversation_id)
        return list(self.lines)

    async def trace(self, conversation_id: str) -> list[TraceLine]:
        await self.agent(conversation_id)
        return list(self.frames)

    async def stderr_after(self, conversation_id: str, mark: Mark | None) -> Fresh[str]:
        await self.agent(conversation_id)
        begin = self._begin(mark)
        end = Mark(self.epoch, self.dropped + len(self.lines))
        items = self.lines[max(0, begin - self.dropped) :]
        return Fresh(end, items, max(0, self.dropped - begin) if begin else 0, again=not begin)

    async def trace_after(self, conversation_id: str, mark: Mark | None) -> Fresh[TraceLine]:
        await self.agent(conversation_id)
        begin = self._begin(mark)
        return Fresh(Mark(self.epoch, len(self.frames)), self.frames[begin:], again=not begin)

    def _begin(self, mark: Mark | None) -> int:
        return mark.number if mark is not None and mark.epoch is self.epoch else 0

    def figures(self) -> Figures:
        return FIGURES

    def watch(self, used: Callable[[Any], None] | None) -> None:
        self.calls.append(("watch", used))

    async def hand_over(self, seconds: float) -> None:
        self.calls.append(("hand_over", seconds))

    def hurry(self, *, kill: bool = False) -> None:
        self.calls.append(("hurry", kill))

    async def create(self, request: StartRequest) -> tuple[FakeConversation, bool]:
        if self.failure is not None:
            raise self.failure
        conversation_id = request.conversation_id or new_event_id()
        self._require_here(conversation_id)
        if conversation_id in self.conversations:
            return self.conversations[conversation_id], False
        if request.parent_conversation_id not in {None, *self.conversations}:
            raise InvalidStart("unknown parent", ("body", "parent_conversation_id"))
        now = timestamp_now()
        log = await self.journal.create(conversation_id, b"{}", status="idle", created_at=now, updated_at=now)
        conversation = self.conversations[conversation_id] = FakeConversation(request, conversation_id, log)
        if request.initial_message is not None:
            await conversation.send(request.initial_message, run=True)
        return conversation, True

    async def fork(self, source_id: str, request: ForkRequest) -> FakeConversation:
        source = await self.get(source_id)
        self.calls.append(("fork", request))
        if self.failure is not None:
            raise self.failure
        wanted = attrs.evolve(
            source.request,
            conversation_id=request.conversation_id,
            title=request.title,
            tags=dict(request.tags or {}),
        )
        return (await self.create(wanted))[0]

    async def start_child(
        self,
        parent_id: str,
        task: str,
        *,
        title: str | None,
        worktree: Worktrees | None,
        by_agent: bool = False,
    ) -> FakeConversation:
        parent = await self.get(parent_id)
        place = None if worktree is None else await worktree.make("child")
        where = parent.request.working_dir if place is None else str(place)
        wanted = attrs.evolve(parent.request, conversation_id=None, title=title, working_dir=where)
        return (await self.create(wanted))[0]

    def make_worktrees(self, of: Callable[[str], Worktrees]) -> None:
        self.made_worktrees = of

    async def models(
        self, agent: AgentSettings, secrets: Mapping[str, str], *, refresh: bool = False
    ) -> dict[str, Any]:
        self.calls.append(("models", agent.acp_command, dict(secrets), refresh))
        return {
            "agent_name": "x",
            "agent_version": None,
            "current_model_id": "m",
            "available_models": [{"model_id": "m", "name": None, "description": None}],
            "supports_runtime_model_switch": True,
            "error": None,
        }

    async def try_model(self, llm: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append(("try_model", dict(llm)))
        if llm["model"] == "nobody":
            raise AgentFailure("ACPSpawnError", "It is not installed.")
        if llm["model"] == "refused":
            raise ModelRefused("ACPInitError", "llm.fallback_strategy: Unknown kind 'x'")
        valid = llm["api_key"] is not None
        return {"valid": valid, "error": None if valid else {"type": "LLMError", "message": "no key"}}

    def forget_owner(self, conversation_id: str) -> None:
        """It remembers none."""

    async def get(self, conversation_id: str) -> FakeConversation:
        await trio.lowlevel.checkpoint()
        self._require_here(conversation_id)
        try:
            return self.conversations[conversation_id]
        except KeyError:
            raise UnknownConversation(f"Conversation not found: {conversation_id}") from None

    def _require_here(self, conversation_id: str) -> None:
        if conversation_id in self.elsewhere:
            raise OwnedElsewhere(conversation_id, self.elsewhere[conversation_id][0])

    async def view(self, conversation_id: str) -> FakeConversation:
        found = self.elsewhere.get(conversation_id)
        return found[1] if found is not None else await self.get(conversation_id)

    async def listing(self, *, status: str | None, order: str, page: str | None, limit: int) -> Listing:
        found = [c.info() for c in self.conversations.values() if status in (None, c.status)]
        found.sort(key=lambda info: info["created_at"], reverse=order.endswith("_desc"))
        ids = [info["id"] for info in found]
        at = ids.index(page) if page in ids else 0
        after = ids[at + limit : at + limit + 1]
        bodies = b",".join(map(orjson.dumps, found[at : at + limit]))
        return Listing(bodies=bodies, next_page_id=after[0] if after else None)

    async def count(self, *, status: str | None = None) -> int:
        return len([c for c in self.conversations.values() if status in (None, c.status)])

    async def delete(self, conversation_id: str, closed: Callable[[], Awaitable[None]] | None = None) -> None:
        await self.get(conversation_id)
        if closed is not None:
            await closed()
        del self.conversations[conversation_id]
        await self.journal.delete(conversation_id)

    async def delete_later(self, conversation_id: str, seconds: float) -> float:
        await self.get(conversation_id)
        self.calls.append(("delete_later", conversation_id, seconds))
        return 1_800_000_000.0

    async def restore(self, conversation_id: str) -> FakeConversation:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("restore", conversation_id))
        return await self.get(conversation_id)


def compile_once() -> None:
    """Have each route's path read once in this process: two hundred paths took half of the time of a test."""
    compile_rule = MatchingRule.compile
    known: dict[str, MatchingRule] = {}

    def compiled(rule: MatchingRule) -> None:
        first = known.setdefault(rule.rule, rule)
        if first is rule:
            compile_rule(rule)
            return
        rule._parts, rule._trace, rule._converters = first._parts, first._trace, first._converters
        rule.arguments |= first.arguments
        rule._build, rule._build_unknown = first._build, first._build_unknown

    MatchingRule.compile = compiled  # type: ignore[method-assign, assignment]


compile_once()


@asynccontextmanager
async def open_gateway(
    state: Path,
    *,
    machines: Machines | None = None,
    server_key: str | None = None,
    lease_seconds: float = 15.0,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """The application and what it stands on, over one state directory. Logs as the server does."""
    logs.configure()
    config = Config(state=state, **settings)
    async with open_journal(state / "journal.sqlite3") as journal, AsyncExitStack() as jobs_of:
        store = SettingsStore(FileDocuments(state), PRESETS, server_errors)
        secrets = await SecretStore.open(state, {})
        environment = {"PATH": os.environ["PATH"], "HOME": str(state)}
        logins = McpLogins(LoginStore(FileDocuments(state), LateCipher(secrets)), environment, state)
        jobs = await jobs_of.enter_async_context(open_jobs(McpProbe(environment, state, logins)))
        bash = await jobs_of.enter_async_context(open_bash(environment, limits=config.supervision.bash))
        supervisor = FakeSupervisor(journal)
        services = Services(
            config=config,
            supervisor=supervisor,
            launcher=Launcher(
                catalog=load_catalog(),
                prefix=state / "agents",
                data=state / "data",
                server_environment={"HOME": str(state)},
                secrets=secrets.values,
                secret_box=SecretBox(LateCipher(secrets)),
                kinds=kind_of,
            ),
            settings=store,
            profiles=AgentProfileStore(store),
            secrets=secrets,
            mcp=jobs,
            bash=bash,
            machines=machines,
            server_key=server_key,
            lease_seconds=lease_seconds,
        )
        app = create_app(services)
        answers = Answers(app, (config.max_page, config.max_event_ids, config.max_body_bytes))
        app.asgi_app = answers.checked(app.asgi_app)  # type: ignore[method-assign, assignment]
        yield Gateway(services, app, supervisor)
        if machines is not None:
            await services.owners.close()
        answers.settle()


@attrs.define
class Gateway:
    services: Services
    app: QuartTrio
    supervisor: FakeSupervisor
    url: str = ""

    async def conversation(self, **fields: Any) -> FakeConversation:
        conversation, _ = await self.supervisor.create(StartRequest(working_dir="/w", **fields))
        return conversation

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Status and decoded body of a request with a JSON body."""
        client = self.app.test_client()
        if body is not None:
            more["data"] = orjson.dumps(body)
            more["headers"] = {"Content-Type": "application/json", **more.get("headers", {})}
        response = await client.open(path, method=method, **more)
        data = await response.get_data(as_text=False)
        assert response.content_type == "application/json", (response.status_code, data[:500])
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return response.status_code, orjson.loads(data)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with open_gateway(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def serving(state: Path, port: int = 0, **settings: Any) -> AsyncIterator[Gateway]:
    """The gateway on a real port. Leaving the block ends it in an orderly way."""
    async with open_gateway(state, port=port, **settings) as opened:
        sockets = await bind(opened.services.config)
        async with trio.open_nursery() as nursery:
            await nursery.start(
                partial(
                    serve_connections,
                    opened.app,
                    sockets,
                    opened.services.config,
                    opened.services.closing,
                    connection_limits=opened.services.connection_limits,
                )
            )
            opened.url = url_of(opened.services.config, sockets)
            yield opened
            opened.services.closing.set()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path) as opened:
        yield opened


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=10) as client:
        yield client


@pytest.fixture
def gateway_with(tmp_path: Path) -> Any:
    """Opens a gateway with settings of the test's own."""
    return partial(open_gateway, tmp_path)


@pytest.fixture
def server_with(tmp_path: Path) -> Any:
    """Opens a gateway with settings of the test's own, on a real port."""
    return partial(serving, tmp_path)


COMMAND_VARIABLES = (
    "OSTLER_URL",
    "OSTLER_HOST",
    "OSTLER_PORT",
    "OSTLER_API_KEY",
    "OSTLER_SESSION_API_KEY",
)


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what tells a command its server."""
    for name in COMMAND_VARIABLES:
        monkeypatch.delenv(name, raising=False)
