"""Finds out which models an agent offers, by starting the agent temporarily.

It is started like any agent - planned, admitted, contained - in a temporary directory. The answer is cached.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import orjson
import structlog
import trio

from supervisor.acp import ConnectionLost, RequestTimeout, RpcError
from supervisor.acp.errors import INVALID_PARAMS
from supervisor.acp.schema import cut
from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.endings import StopPolicy
from supervisor.conversations.agent.admission import RETRY_AFTER_SECONDS
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.incarnation import Incarnation, run_agent
from supervisor.conversations.agent.opening import open_agent
from supervisor.conversations.agent.session_setup import handshake, lost, startup_timeout
from supervisor.conversations.agent.side.discarding import Mute
from supervisor.conversations.agent.side.side_session import end_session
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure, AtCapacity, ModelRefused
from supervisor.conversations.state.failures import from_rpc
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.credentials.secret import CredentialsFailure
from supervisor.events import Vocabulary, timestamp_now
from supervisor.settings.agent import AgentSettings, BuiltInSettings, agent_settings_to_dict
from supervisor.version import __version__

log = structlog.get_logger(__name__)

AT_ONCE: Final = 2
"""Concurrent agents started for this; further requests wait."""

WAIT_SECONDS: Final = 20.0
"""Seconds that a request waits for each of these: a slot among AT_ONCE, admission, and an equal request.
Clients give up after half a minute."""

BUSY: Final = (
    "The server has no room for an agent that could be asked. Try again later, or end a conversation."
)

KEPT_SECONDS: Final = 600.0
"""Seconds for which an answer is cached: lists of models change weekly, and clients ask each time they show
one."""

KEPT_MAX: Final = 64
"""The most cached answers, each of up to 64 KiB."""

WORKSPACE: Final = "workspace"

TRY_MODEL: Final = "_ostler/try_model"

TRIAL_SECONDS: Final = 45.0
"""Seconds for the trial of a model: 15 for the library's one request (builtin/trial.py), the rest for
importing the library on a busy machine. The process is ended after that."""

SAID_CHARS: Final = 2048
"""Longest reason why a model does not answer, characters: clients show a line or two, and an endpoint may
send pages."""

NOT_INSTALLED: Final = (
    "The built-in agent is not installed, and only its library can try a model. "
    "Run `ostler agents install openhands`, or save the profile untried."
)


@attrs.define(eq=False)
class _Guest:
    """A temporary agent, as admission sees it: always in use."""

    rss_bytes: int = 0
    run: Incarnation | None = None

    @property
    def idle_since(self) -> float | None:
        return None

    async def measure(self, seen: Snapshot | None = None) -> None:
        if self.run is not None and not self.run.process.exited.is_set():
            self.rss_bytes = (await self.run.process.usage(seen)).rss_bytes

    async def hibernate(self, reason: str) -> None:
        raise AssertionError("it is never idle")


class ModelDiscovery:
    """Asks agents for their models. One per server."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._slots = trio.CapacityLimiter(AT_ONCE)
        self._kept: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()
        self._asking: dict[str, trio.Lock] = {}

    async def models(
        self, settings: AgentSettings, secrets: Mapping[str, str], *, refresh: bool = False
    ) -> dict[str, Any]:
        """Ask an agent for its models. Returns the API's ACPModelDiscovery; failures are in its `error`, and
        are not cached.

        `secrets`: besides the global ones. `refresh`: ignore a cached answer.

        Raises AtCapacity if the agent is not admitted within `WAIT_SECONDS`, or at once if the operator chose
        that.

        Cancellation ends the agent.
        """
        key = _key(settings, secrets)
        lock = self._asking.setdefault(key, trio.Lock())
        try:
            async with _soon(lock):  # concurrent equal requests share the answer
                kept = self._kept.get(key)
                now = trio.current_time()
                if kept is not None and now < kept[0] and not refresh:
                    return kept[1]
                self._context.admission.check()
                async with _soon(self._slots):
                    answer = await self._ask(settings, secrets)
                if answer["error"] is None:
                    self._kept[key] = (trio.current_time() + KEPT_SECONDS, answer)
                    self._kept.move_to_end(key)
                    if len(self._kept) > KEPT_MAX:
                        self._kept.popitem(last=False)
                return answer
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._asking.pop(key, None)

    async def try_model(self, llm: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a language model answers a request through the built-in agent's library: an object with
        `valid` and `error` (`type`, `message`).

        Raises ModelRefused if the library refuses it, and AgentFailure if the agent cannot be started, or is
        not installed (an installation would take minutes). Raises AtCapacity as `models`. Cancellation ends
        the agent.
        """
        settings = BuiltInSettings(document={"agent": {"llm": llm}}, mcp_config={})
        self._context.admission.check()
        async with _soon(self._slots), self._guest(settings, {}) as record:
            return await self._started(record, partial(_tried, llm), _not_installed)

    async def _ask(self, settings: AgentSettings, secrets: Mapping[str, str]) -> dict[str, Any]:
        try:
            async with self._guest(settings, secrets) as record:
                return await self._started(record, _models, lambda step: log.info("installing", step=step))
        except AgentFailure as failure:
            return _answer(error={"code": failure.code, "detail": failure.detail})
        except (CredentialsFailure, OSError) as error:
            return _answer(error={"code": "ACPSpawnError", "detail": str(error)})

    @asynccontextmanager
    async def _guest(
        self, settings: AgentSettings, secrets: Mapping[str, str]
    ) -> AsyncIterator[ConversationRecord]:
        """The record of an agent without a conversation. Its files are removed after the block."""
        context = self._context
        name = str(uuid.uuid4())
        now = timestamp_now()
        try:
            record = ConversationRecord(
                id=name,
                start=Start(
                    working_dir=str(Path(context.launcher.data) / name / WORKSPACE),
                    created_at=now,
                    vocabulary=Vocabulary.EXTENDED,
                    mcp_only=[],
                ),
                updated_at=now,
                agent=await context.secret_box.seal_settings(settings),
                secrets=await context.secret_box.seal(secrets),
            )
            preset = tuple(settings.acp_command) == context.launcher.descriptor(record).command
            record.start = attrs.evolve(record.start, preset_command=preset)
            yield record
        finally:
            with trio.CancelScope(shield=True):
                await context.launcher.files.forget(name)

    async def _started(
        self,
        record: ConversationRecord,
        ask: Callable[[Incarnation, ConversationRecord, Deadlines], Awaitable[dict[str, Any]]],
        installing: Callable[[str], None],
    ) -> dict[str, Any]:
        """Start the agent, `ask` it, and end it."""
        context, waits = self._context, self._context.deadlines
        guest = _Guest()
        stop = StopPolicy(stdin_grace=waits.stop_stdin, term_grace=waits.stop_term, kill=waits.stop_kill)
        limit = record.agent.acp_startup_timeout
        plan = await context.launcher.plan(record, installing, waits.install)
        answer: dict[str, Any] | None = None
        failure: AgentFailure | None = None
        async with (
            _soon(context.admission.tenancy(guest, lambda: None)),
            run_agent(plan, Mute(), stop, waits.spawn, context.admission.terminals) as run,
        ):
            guest.run = run
            try:
                with trio.fail_after(limit):
                    answer = await ask(run, record, waits)
            except trio.TooSlowError:
                failure = startup_timeout("get ready", limit)
            except ConnectionLost as error:
                failure = lost(error, "ACPInitError")
            except RpcError as error:
                failure = from_rpc(error, "ACPInitError")
            except AgentFailure as error:  # raised inside the block it would become an exception group
                failure = error
        if answer is None:
            assert failure is not None
            raise failure
        return answer


async def _models(run: Incarnation, record: ConversationRecord, waits: Deadlines) -> dict[str, Any]:
    started = await open_agent(run, record, waits)
    await end_session(run.connection, run.initialized, started.session.session_id, waits)
    info = None if run.initialized is None else run.initialized.agent
    return _answer(
        agent_name=None if info is None else info.name,
        agent_version=None if info is None else info.version,
        current_model_id=started.models.current,
        available_models=started.models.available or [],
        supports_runtime_model_switch=started.models.switchable,
    )


async def _tried(
    llm: Mapping[str, Any], run: Incarnation, record: ConversationRecord, waits: Deadlines
) -> dict[str, Any]:
    await handshake(run.connection, __version__, waits, fs=False, terminal=False)
    try:
        answer = await run.connection.request(TRY_MODEL, {"llm": dict(llm)}, timeout=TRIAL_SECONDS)
    except RequestTimeout:
        raise startup_timeout("try the model", TRIAL_SECONDS) from None
    except RpcError as error:
        if error.code != INVALID_PARAMS:
            raise
        refusal = cut(error.message, SAID_CHARS)
        raise ModelRefused("ACPInitError", refusal, kind="config", user_action="settings") from None
    found = answer if isinstance(answer, Mapping) else {}
    wrong = found.get("error")
    if not isinstance(wrong, Mapping):
        return {"valid": bool(found.get("valid")), "error": None}
    return {
        "valid": False,
        "error": {name: cut(str(wrong.get(name)), SAID_CHARS) for name in ("type", "message")},
    }


def _not_installed(step: str) -> NoReturn:
    raise AgentFailure("ACPSpawnError", NOT_INSTALLED, kind="config", user_action="settings")


@asynccontextmanager
async def _soon(place: AbstractAsyncContextManager[object]) -> AsyncIterator[None]:
    """Hold `place` while the block runs. Raises AtCapacity if entering takes over `WAIT_SECONDS`."""
    async with AsyncExitStack() as held:
        with trio.move_on_after(WAIT_SECONDS) as waiting:
            await held.enter_async_context(place)
        if waiting.cancelled_caught:
            raise AtCapacity(BUSY, RETRY_AFTER_SECONDS)
        yield


def failed(code: str, detail: str) -> dict[str, Any]:
    """The answer if no agent could be asked."""
    return _answer(error={"code": code, "detail": detail})


def _answer(**known: Any) -> dict[str, Any]:
    return {
        "agent_name": None,
        "agent_version": None,
        "current_model_id": None,
        "available_models": [],
        "supports_runtime_model_switch": False,
        "error": None,
        **known,
    }


def _key(settings: AgentSettings, secrets: Mapping[str, str]) -> str:
    """A digest of everything that the answer may depend on, besides the global secrets. It reveals no
    value."""
    known = [agent_settings_to_dict(settings), dict(secrets)]
    return hashlib.sha256(orjson.dumps(known, option=orjson.OPT_SORT_KEYS)).hexdigest()
