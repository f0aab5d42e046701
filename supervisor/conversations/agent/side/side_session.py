"""Side sessions: further sessions of a live agent, for questions that are not part of its conversation.

A question is asked in a fork of the agent's session if the agent offers that, else in a new session that gets
a transcript. The agent's answer is returned to the caller and not recorded as events. Permission requests are
rejected. The session is closed and deleted as far as the agent offers that.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog
import trio

from supervisor.acp import (
    AcpError,
    Connection,
    ConnectionLost,
    InitializeResult,
    RequestTimeout,
    Result,
    RpcError,
    classify_error,
    method_offered,
    parse_permission,
    parse_prompt_result,
    parse_session,
    shorten_session_id,
)
from supervisor.acp.permission_answers import reject
from supervisor.acp.schema import EXACT_CHARS, SessionResult
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.session_setup import lost
from supervisor.conversations.agent.side.registry import SideSession
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure, AgentTimeout
from supervisor.conversations.state.failures import from_rpc
from supervisor.patience import ended_by

log = structlog.get_logger(__name__)

NO_ANSWER: Final = "ACPPromptError"
"""The error code if the agent did not answer."""

READING: Final = frozenset({"fs/read_text_file"})
"""Client methods that a side session may use: those without side effects."""


def refuse(method: str, params: Any) -> dict[str, Any] | None:
    """The answer to a request of a side session; None if it may be served.

    Rejects permission requests. Raises RpcError for methods with side effects.
    """
    if method == "session/request_permission":
        return reject(parse_permission(params).options)
    if method in READING:
        return None
    raise RpcError.method_not_found(method)


def can_fork(run: Incarnation) -> bool:
    """Whether the agent offers to fork its session."""
    return run.initialized is not None and method_offered(run.initialized, "session/fork")


def can_hand_over(run: Incarnation) -> bool:
    """Whether another process of the same agent can restore a fork of its session.

    For that the fork is closed here and restored there, and both processes must share their files, or the
    location of the sessions must be known, so that they can be copied. A session that cannot be closed would
    stay open in two processes that write to the same files.
    """
    offers = run.initialized
    return (
        offers is not None
        and (not run.plan.private or bool(run.plan.descriptor.sessions))
        and can_fork(run)
        and method_offered(offers, "session/close")
        and any(method_offered(offers, method) for method in ("session/resume", "session/load"))
    )


@asynccontextmanager
async def forked_session(
    run: Incarnation, cwd: str, deadlines: Deadlines, *, keep: bool = False
) -> AsyncIterator[SideSession]:
    """Fork the agent's session, and close the fork at the end of the block; `keep`: without deleting it.

    Raises RpcError, RequestTimeout, ConnectionLost.
    """
    assert run.session is not None
    params = {"sessionId": run.session.session_id, "cwd": cwd, "mcpServers": []}
    async with _opened(run, "session/fork", params, deadlines, keep=keep) as side:
        yield side


@asynccontextmanager
async def _opened(
    run: Incarnation,
    method: str,
    params: Mapping[str, Any],
    deadlines: Deadlines,
    *,
    keep: bool = False,
) -> AsyncIterator[SideSession]:
    made: list[SideSession] = []

    def answered(result: Result) -> None:
        # Runs before later updates are read, since the next ones may already belong to this session.
        session_id = session_id_of(parse_session(result.value)) if result.error is None else None
        if session_id is not None and not run.knows(session_id):
            made.append(SideSession(session_id, method == "session/fork"))
            run.sides.add(made[-1])

    try:
        await run.connection.request(method, params, timeout=deadlines.new_session, on_response=answered)
        if not made:
            raise AgentFailure("ACPInitError", f"The agent answered {method} without a session of its own.")
        yield made[-1]
    finally:
        for side in made:
            run.sides.remove(side)
            await end_session(run.connection, run.initialized, side.session_id, deadlines, delete=not keep)


def session_id_of(result: SessionResult) -> str | None:
    """The id of a new session, unless it is missing or too long to be sent back."""
    found = result.session_id
    return found if found and len(found) <= EXACT_CHARS else None


async def end_session(
    connection: Connection,
    initialized: InitializeResult | None,
    session_id: str,
    deadlines: Deadlines,
    *,
    delete: bool = True,
) -> None:
    """Close a session, and delete it, as far as the agent offers that. Best effort.

    Shielded from cancellation; bounded by `Deadlines.close` for each step.
    """
    with trio.CancelScope(shield=True):
        for method in ("session/close", "session/delete") if delete else ("session/close",):
            if (
                initialized is None
                or connection.reason is not None
                or not method_offered(initialized, method)
            ):
                continue
            try:
                await connection.request(method, {"sessionId": session_id}, timeout=deadlines.close)
            except AcpError as error:
                log.info("agent did not end a side session", method=method, error=str(error))


async def ask(
    run: Incarnation,
    cwd: str,
    deadlines: Deadlines,
    *,
    question: Sequence[Mapping[str, Any]],
    transcript: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
    remembers: bool,
) -> str:
    """Ask the agent something in a side session, and return its answer: at most ANSWER_BYTES and a note.

    `question`: ACP blocks. `transcript` makes the blocks for a new session, if the agent cannot fork.
    `remembers`: the agent's session contains the conversation, and so does a fork of it.

    Raises AgentFailure; AgentTimeout when there was no answer within `Deadlines.side_question`.

    Cancellation cancels the turn of the side session, and closes it.
    """
    try:
        with trio.fail_after(deadlines.side_question):
            async with _side(run, cwd, deadlines, fork=remembers and can_fork(run)) as side:
                return await _prompt(run, side, question if side.forked else [*await transcript(), *question])
    except (trio.TooSlowError, RequestTimeout) as error:
        raise AgentTimeout(
            NO_ANSWER,
            f"The agent did not answer the side question within {deadlines.side_question:g} s.",
            kind="transient",
            retryable=True,
            user_action="retry",
        ) from error
    except RpcError as error:
        raise from_rpc(error, NO_ANSWER) from error
    except ConnectionLost as error:
        raise lost(error) from error


@asynccontextmanager
async def _side(
    run: Incarnation, cwd: str, deadlines: Deadlines, *, fork: bool
) -> AsyncIterator[SideSession]:
    """Fork the agent's session; open a new one if it offers no fork, or the fork fails."""
    async with AsyncExitStack() as stack:
        side = None
        if fork:
            try:
                side = await stack.enter_async_context(forked_session(run, cwd, deadlines))
            except RpcError as error:
                if classify_error(error) == "auth":
                    raise
                log.info("agent did not fork its session", error=str(error))
        if side is None:
            params = {"cwd": cwd, "mcpServers": []}
            side = await stack.enter_async_context(_opened(run, "session/new", params, deadlines))
        yield side


async def _prompt(run: Incarnation, side: SideSession, content: Sequence[Mapping[str, Any]]) -> str:
    answer: Any = None
    ended = False
    try:
        async with ended_by(side.full.wait):
            params = {"sessionId": side.session_id, "prompt": list(content)}
            answer = await run.connection.request("session/prompt", params, timeout=math.inf)
            ended = True
    except AcpError:
        ended = True
        raise
    finally:
        if not ended:
            run.connection.notify("session/cancel", {"sessionId": side.session_id})
    said = shorten_session_id(run.plan.mask.text(side.answer), side.session_id)
    if ended and not side.answer:
        reason = parse_prompt_result(answer).stop_reason
        if reason != "end_turn":
            raise AgentFailure(NO_ANSWER, f"The agent did not answer: {reason}.", kind="agent_action")
    return said
