"""Makes a running agent process ready for prompts: handshake, session, model and mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import structlog

from supervisor.acp import InitializeResult, mode_option, modes_block
from supervisor.agents.catalog import Descriptor
from supervisor.conversations.agent.asking_mode import ask_first, asks_now, left_alone
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.options import OPTIONS, set_again
from supervisor.conversations.agent.session_choices import (
    MODELS_BYTES,
    ModelChoice,
    choose,
    models_of,
    open_one,
)
from supervisor.conversations.agent.session_setup import (
    Session,
    SessionRequest,
    add_choices,
    handshake,
    load_again,
    open_session,
)
from supervisor.conversations.agent.side.side_session import can_hand_over
from supervisor.conversations.history.prompt import TAKES
from supervisor.conversations.mcp.mounting import Mounted, served
from supervisor.conversations.recording import permission_log, usage
from supervisor.conversations.resource.status_publisher import Refusal
from supervisor.conversations.state.confirmation import CONFIRMATION, asks_a_person, may_ask
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import AgentPhase, CutOff, Memory
from supervisor.events import SecurityRisk
from supervisor.mcp.forward import Forwarded, forward_servers
from supervisor.version import __version__

log = structlog.get_logger(__name__)

RESTORES_TRIED: Final = 2
"""Crashes while restoring a session, after which a new session is opened instead."""

CUT_OFF: Final = (
    "a tool call was cut off, or may have been, and the agent might run it again. `acp_after_cut_off: "
    "restore` in its settings restores such a session all the same"
)
"""The reason not to restore a session in which a tool call was cut off."""

MINUTE_MARGIN_SECONDS: Final = 0.5
"""Seconds to wait after the full minute: a margin for the agent's clock."""


@attrs.frozen
class Started:
    """The result of a start: the session, its models, its MCP servers, and notes on what was cut from the
    agent's answers."""

    session: Session
    models: ModelChoice
    mounted: Mounted
    cut: tuple[str, ...] = ()
    confirmation: Mapping[str, Any] | None = None
    """Whether the agent asks for permissions, for clients (see `asking_mode`)."""
    refused: tuple[Refusal, ...] = ()
    """The settings that the agent refused."""

    def states(self) -> Iterator[tuple[str, Any]]:
        """The states that clients get besides `agent_state`, by key."""
        if self.mounted:
            yield "mcp_servers", self.mounted.dump()
        if self.confirmation is not None:
            yield CONFIRMATION, dict(self.confirmation)
        yield from session_states(self.session)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The MCP servers that were left out, or lack something, with reasons."""
        return tuple(f"{name}: {reason}" for name, reason in (*self.mounted.dropped, *self.mounted.notes))


def session_states(session: Session) -> Iterator[tuple[str, Any]]:
    """The choices of a session, by the keys of the states that publish them."""
    options, modes = session.result.config_options or (), session.result.modes
    if options:
        yield "config_options", [option.raw for option in options]
    if modes is not None and mode_option(options) is None:
        yield "modes", modes_block(modes)
        if modes.current:
            yield "current_mode", modes.current


async def open_agent(run: Incarnation, record: ConversationRecord, deadlines: Deadlines) -> Started:
    """Do the handshake (once per incarnation), open the session, and set model and mode.

    Restores the record's session if possible.

    Raises AgentFailure, ConnectionLost.

    After a cancellation, the owner of the incarnation must stop it.
    """
    if run.initialized is None:
        try:
            await introduce(run, deadlines)
        except AgentFailure as failure:
            add_choices(failure, run.plan.login, None)
            raise
        assert run.initialized is not None
    forwarded = await _forwarded(run)
    lost_already = _given_up(record, run.plan.data_disk, may_repeat=may_repeat(record, run.plan.descriptor))
    known = record.now.session_used and lost_already is None
    request = SessionRequest(
        cwd=record.start.working_dir,
        mcp_servers=forwarded.servers,
        prior_id=record.now.session_id if known else None,
        login=run.plan.login,
        lost_already=lost_already,
        own=own_parameters(run.plan.own, record),
        meta=run.plan.descriptor.session_meta,
    )
    run.session = await open_session(run.connection, run.initialized, request, deadlines, run.note_replay)
    return await _settled(run, record, deadlines, Mounted.of(run.plan.mounting, forwarded))


async def introduce(run: Incarnation, deadlines: Deadlines) -> None:
    """Do the handshake. If a custom command turns out to be an agent of the catalogue, that descriptor
    applies (`Plan.known_as`), and `initialize` is sent again with its capabilities. All external agents of
    the catalogue answer a second `initialize` (Auggie is untested). An agent that refuses it keeps the
    capabilities of the first.

    Raises AgentFailure, ConnectionLost.
    """
    offered = run.plan.descriptor
    run.initialized = await handshake(
        run.connection, __version__, deadlines, fs=offered.fs, terminal=offered.terminal
    )
    name = None if run.initialized.agent is None else run.initialized.agent.name
    known = offered if run.plan.known_as is None else run.plan.known_as(name)
    run.plan = attrs.evolve(run.plan, descriptor=known)
    if (known.fs, known.terminal) != (offered.fs, offered.terminal):
        log.info("the agent is a known one; offering it other methods", name=name)
        try:
            run.initialized = await handshake(
                run.connection, __version__, deadlines, fs=known.fs, terminal=known.terminal
            )
        except AgentFailure as failure:
            log.info("the agent keeps the methods that it was offered first", reason=str(failure))
        else:
            run.services.offer(fs=known.fs, terminal=known.terminal)


def may_repeat(record: ConversationRecord, descriptor: Descriptor) -> bool:
    """Whether the agent may rerun a cut-off tool call after its session is resumed. An untested agent is
    trusted not to if it reported the turn as cancelled, or if no open call is known: it would lose its memory
    with every kill of the server."""
    if record.now.cut_off is None or not record.now.session_used:
        return False
    if descriptor.resumes_calls is None:
        return record.now.cut_off is CutOff.UNKNOWN
    return descriptor.resumes_calls


def own_parameters(own: Mapping[str, Any] | None, record: ConversationRecord) -> Mapping[str, Any] | None:
    """The extension parameters of the built-in agent. A later session of its conversation must not find the
    memory of the first one."""
    if own is None:
        return None
    own = present(own, record)
    if not record.now.sessions:
        return own
    return {name: value for name, value in own.items() if name != "conversation_id"}


def present(own: Mapping[str, Any], record: ConversationRecord) -> dict[str, Any]:
    """Add the present policy and analyzer, which may have changed since the plan was made."""
    return {
        **own,
        "confirmation_policy": record.confirmation_policy,
        "security_analyzer": record.security_analyzer,
    }


async def load_agent(run: Incarnation, record: ConversationRecord, deadlines: Deadlines) -> Started:
    """Load the session again after the agent reported it as not found, and set model and mode.

    Raises AgentFailure, ConnectionLost. After a cancellation, the owner of the incarnation must stop it.
    """
    assert run.initialized is not None
    assert run.session is not None
    if may_repeat(record, run.plan.descriptor):
        raise AgentFailure("ACPInitError", f"It is not loaded: {CUT_OFF}.")
    forwarded = await _forwarded(run)
    request = SessionRequest(
        cwd=record.start.working_dir,
        mcp_servers=forwarded.servers,
        prior_id=run.session.session_id,
        login=run.plan.login,
        own=None if run.plan.own is None else present(run.plan.own, record),
        meta=run.plan.descriptor.session_meta,
    )
    run.session = await load_again(run.connection, run.initialized, request, deadlines, run.note_replay)
    return await _settled(run, record, deadlines, Mounted.of(run.plan.mounting, forwarded))


async def _forwarded(run: Incarnation) -> Forwarded:
    """The MCP servers in the form that this agent supports."""
    assert run.initialized is not None
    if run.servers is None:
        run.servers = await served(run.plan.mounting, run.nursery)
    capabilities = run.initialized.capabilities
    forwarded = await forward_servers(
        run.servers,
        {"http": capabilities.mcp_http, "sse": capabilities.mcp_sse},
        workspace=run.plan.cwd,
        search_path=run.plan.environment.get("PATH"),
        whole=run.plan.kind.takes_servers_whole,
    )
    if run.plan.door is None or run.door is None:
        return forwarded
    wiring = run.plan.door.wiring
    servers, dropped = wiring.servers(forwarded.servers)
    run.door.allow(wiring.hosts)
    return attrs.evolve(forwarded, servers=servers, dropped=[*forwarded.dropped, *dropped])


async def _settled(
    run: Incarnation, record: ConversationRecord, deadlines: Deadlines, mounted: Mounted
) -> Started:
    """Set model and mode of the open session."""
    assert run.initialized is not None
    assert run.session is not None
    agent = record.agent
    refused = []
    models = models_of(run.session.result)
    if agent.acp_model:
        refusal = await choose(run, "model", agent.acp_model, deadlines)
        if refusal is None:
            models = attrs.evolve(models, current=agent.acp_model)
        else:
            refused.append(refusal)
    if agent.acp_session_mode:
        refusal = await choose(run, "mode", agent.acp_session_mode, deadlines)
        if refusal is not None:
            refused.append(refusal)
    confirmation = await confirm(run, record, deadlines)
    if record.options:
        refused += await set_again(run, record, deadlines)
        if confirmation is not None and confirmation["asks"]:
            asks = asks_now(open_one(run).result, confirmation["mode"])
            confirmation = {**confirmation, "asks": asks}
    run.mounted = mounted
    session = open_one(run)
    cut = tuple(_cut(run.initialized, session, models))
    return Started(session, models, mounted, cut, confirmation, tuple(refused))


async def confirm(
    run: Incarnation, record: ConversationRecord, deadlines: Deadlines
) -> dict[str, Any] | None:
    """Put the agent into a mode that asks, if the conversation's policy requires confirmation and its
    settings name no mode. Returns the result for clients; None if the policy requires no confirmation.

    Raises ConnectionLost.
    """
    assert run.session is not None
    if run.plan.kind.asks_by_policy or not may_ask(record.confirmation_policy):
        return None
    if record.agent.acp_session_mode:
        return left_alone(run.session, record.agent.acp_session_mode)
    everything = asks_a_person(record.confirmation_policy, SecurityRisk.LOW)
    return await ask_first(run, deadlines, everything=everything)


def _cut(initialized: InitializeResult, session: Session, models: ModelChoice) -> Iterator[str]:
    if initialized.lost is not None:
        yield f"initialize: {initialized.lost}"
    if session.result.lost is not None:
        yield f"the session's answer: {session.result.lost}"
    if models.left_out:
        yield f"{models.left_out} models are not shown: the list exceeds {MODELS_BYTES // 1024} KiB"


def _given_up(
    record: ConversationRecord, data_disk: str | None = None, *, may_repeat: bool = False
) -> str | None:
    """The reason not to restore the record's session; None if there is none."""
    if record.now.memory_lost is not None:
        return record.now.memory_lost
    if not record.now.session_used:
        return None
    if may_repeat:
        return CUT_OFF
    if record.now.session_cwd != record.start.working_dir:
        return "the workspace changed"
    if record.now.session_disk != data_disk and record.now.session_disk is not None:
        return "the agent's data stayed on another server"
    # A session that its agent cannot bear must not make a crash loop.
    if record.now.failed_restores >= RESTORES_TRIED:
        return f"the agent exited {record.now.failed_restores} times while restoring it"
    return None


def wait_to_restore(record: ConversationRecord, *, by_minute: bool, now: float) -> float:
    """Seconds until the session may be restored.

    Some agents overwrite a session that is restored within the minute in which it was opened (see
    `Descriptor.sessions_by_minute`). `now` is in seconds since the epoch.
    """
    if not by_minute or not record.now.session_used or record.now.session_opened // 60 != now // 60:
        return 0.0
    return (now // 60 + 1) * 60 - now + MINUTE_MARGIN_SECONDS


def note_session(record: ConversationRecord, run: Incarnation, started: Started) -> None:
    """Record the result of a start; `agent_state` is the part that clients see."""
    session, models = started.session, started.models
    if session.memory in (Memory.NEW, Memory.LOST) and record.reported.usage:
        record.reported.usage = usage.new_session(record.reported.usage)
    record.reported.current_model = models.current
    if models.available is not None:
        record.reported.models = models.available
        record.reported.models_cut = bool(models.left_out)
    record.reported.can_switch_model = models.switchable
    record.reported.hands_over = can_hand_over(run)
    info = None if run.initialized is None else run.initialized.agent
    state: dict[str, Any] = {
        "acp_agent_name": None if info is None else info.name,
        "acp_agent_version": None if info is None else info.version,
        TAKES: [] if run.initialized is None else sorted(run.initialized.capabilities.prompt),
        "acp_session_id": session.session_id,
        "acp_session_cwd": record.start.working_dir,
        "acp_supports_runtime_model_switch": models.switchable,
        "acp_model_via_config_option": models.by_option,
        "acp_current_model_id": models.current,
        "acp_available_models": record.reported.models or [],
        "memory": session.memory,
        "phase": AgentPhase.READY,
    }
    if started.dropped:
        state["mcp_notes"] = list(started.dropped)
    for kept in (CONFIRMATION, permission_log.STATE):
        if kept in record.reported.agent_state:
            state[kept] = record.reported.agent_state[kept]
    if started.confirmation is not None:
        state[CONFIRMATION] = {**state.get(CONFIRMATION, {}), **started.confirmation}
    if record.options:
        state[OPTIONS] = dict(record.options)
    if started.cut:
        state["acp_notes"] = list(started.cut)
    record.reported.agent_state = state
