"""Opens a session: handshake, credentials, and the fallbacks resume / load / new.

Independent of processes: these are steps over one connection, each with its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import structlog

from supervisor.acp import (
    Connection,
    ConnectionLost,
    InitializeResult,
    RequestTimeout,
    RpcError,
    SessionResult,
    UnsupportedProtocolVersion,
    classify_error,
    error_text,
    initialize_params,
    method_offered,
    parse_initialize,
    parse_session,
    shorten_session_id,
)
from supervisor.acp.errors import AUTH_REQUIRED, METHOD_NOT_FOUND
from supervisor.acp.schema import EXACT_CHARS
from supervisor.acp.schema.handshake import AuthMethod, parse_auth_methods
from supervisor.acp.schema.read import as_object
from supervisor.conversations.agent.launch.login import Login
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.failures import auth_required, from_rpc, what_would_help
from supervisor.conversations.state.status import Memory

log = structlog.get_logger(__name__)

STARTUP_TIMEOUT: Final = "ACPStartupTimeout"
"""The error code of a start that took too long."""

NO_ACP: Final = "Is its command that of an ACP agent? Some speak ACP only with an argument, such as acp."
DEFECT: Final = "That is a defect of the agent: try another version of it."


@attrs.frozen(kw_only=True)
class SessionRequest:
    """The parameters for opening a session.

    `prior_id`: the session to resume. `login`: how to authenticate. `lost_already`: why an existing session
    is not tried. `own`: the extension parameters of the built-in agent (docs/built-in-agent.md). `meta`: the
    `_meta` of an agent of the catalogue (`session_meta`).
    """

    cwd: str
    mcp_servers: Sequence[Mapping[str, Any]]
    prior_id: str | None
    login: Login
    lost_already: str | None = None
    own: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    meta: Mapping[str, Any] = attrs.field(factory=dict)

    def params(self, **more: Any) -> dict[str, Any]:
        """The parameters of `session/new`; with `sessionId`, of the other methods."""
        meta = {**self.meta} if self.own is None else {**self.meta, "ostler": dict(self.own)}
        asked = {"_meta": meta} if meta else {}
        return {**more, "cwd": self.cwd, "mcpServers": list(self.mcp_servers), **asked}


@attrs.frozen
class Session:
    """An open session: its id, whether the agent remembers, and its modes and options.

    `reason` says why the memory was lost, if it was.
    """

    session_id: str
    memory: Memory
    result: SessionResult
    reason: str | None = None


async def handshake(
    connection: Connection, version: str, deadlines: Deadlines, *, fs: bool, terminal: bool
) -> InitializeResult:
    """Send `initialize` and return the answer.

    Raises AgentFailure (ACPInitError, ACPStartupTimeout).

    After a cancellation the connection cannot open a session; the caller owns and closes it.
    """
    try:
        answer = await connection.request(
            "initialize", initialize_params(version, fs=fs, terminal=terminal), timeout=deadlines.initialize
        )
        return parse_initialize(answer)
    except UnsupportedProtocolVersion as error:
        raise AgentFailure("ACPInitError", str(error), kind="config", user_action="settings") from error
    except RpcError as error:
        failure = from_rpc(error, "ACPInitError")
        if error.code == METHOD_NOT_FOUND:
            failure.detail = f"The agent does not know initialize ({failure.detail}). {NO_ACP}"
        raise failure from error
    except RequestTimeout as error:
        failure = startup_timeout("answer initialize", deadlines.initialize)
        failure.detail = f"{failure.detail} {NO_ACP}"
        raise failure from error


async def open_session(
    connection: Connection,
    initialized: InitializeResult,
    request: SessionRequest,
    deadlines: Deadlines,
    replaying: Callable[[bool], None],
) -> Session:
    """Open a session: `session/resume`, else `session/load`, else `session/new`.

    `replaying` announces the replay of `session/load`. After a refusal for lack of credentials,
    `authenticate` is sent and the request repeated once. The next method is tried only after an error that
    reports the session as missing, or that is unspecific. A lost connection and missing credentials do not
    mean that the session is lost, so they are raised.

    Raises AgentFailure.
    """
    reason = request.lost_already
    if request.prior_id is not None:
        for method, memory in (("session/resume", Memory.RESUMED), ("session/load", Memory.LOADED)):
            if not method_offered(initialized, method):
                continue
            replaying(True)  # resume must not replay, but some agents do
            try:
                params = request.params(sessionId=request.prior_id)
                answer = await _with_login(
                    connection, initialized, request, method, params, deadlines.load_session, deadlines
                )
                return Session(request.prior_id, memory, parse_session(answer or {}))
            except RpcError as error:
                reason = shorten_session_id(str(from_rpc(error, "ACPInitError")), request.prior_id)
                log.info("agent could not restore its session", method=method, reason=reason)
            except RequestTimeout:
                reason = f"no answer to {method} within {deadlines.load_session:g} s"
            finally:
                replaying(False)
        if reason is None:
            reason = "the agent offers neither session/resume nor session/load"
    try:
        answer = await _with_login(
            connection,
            initialized,
            request,
            "session/new",
            request.params(),
            deadlines.new_session,
            deadlines,
        )
    except RpcError as error:
        raise from_rpc(error, "ACPInitError") from error
    except RequestTimeout as error:
        raise startup_timeout("answer session/new", deadlines.new_session) from error
    session_id = answer.get("sessionId") if isinstance(answer, Mapping) else None
    if not isinstance(session_id, str) or not session_id:
        raise AgentFailure("ACPInitError", f"The agent answered session/new without a sessionId. {DEFECT}")
    if len(session_id) > EXACT_CHARS:
        detail = (
            f"The agent's sessionId has {len(session_id)} characters; at most {EXACT_CHARS} are "
            f"allowed. {DEFECT}"
        )
        raise AgentFailure("ACPInitError", detail)
    memory = Memory.NEW if reason is None else Memory.LOST
    return Session(session_id, memory, parse_session(answer), reason)


async def load_again(
    connection: Connection,
    initialized: InitializeResult,
    request: SessionRequest,
    deadlines: Deadlines,
    replaying: Callable[[bool], None],
) -> Session:
    """Load the session `prior_id` again in an agent that no longer finds it: `session/load`, or
    `session/resume` if the agent offers only that.

    Raises AgentFailure, ConnectionLost.
    """
    assert request.prior_id is not None
    ways = (("session/load", Memory.LOADED), ("session/resume", Memory.RESUMED))
    offered = [way for way in ways if method_offered(initialized, way[0])]
    if not offered:
        raise AgentFailure("ACPInitError", "the agent offers neither session/load nor session/resume")
    method, memory = offered[0]
    params = request.params(sessionId=request.prior_id)
    replaying(True)
    try:
        answer = await connection.request(method, params, timeout=deadlines.load_session)
    except RpcError as error:
        raise from_rpc(error, "ACPInitError") from error
    except RequestTimeout as error:
        raise startup_timeout(f"answer {method}", deadlines.load_session) from error
    finally:
        replaying(False)
    return Session(request.prior_id, memory, parse_session(answer or {}))


async def _with_login(
    connection: Connection,
    initialized: InitializeResult,
    request: SessionRequest,
    method: str,
    params: Mapping[str, Any],
    timeout: float,
    deadlines: Deadlines,
) -> Any:
    try:
        return await connection.request(method, params, timeout=timeout)
    except RpcError as error:
        if error.code != AUTH_REQUIRED:
            if classify_error(error) == "auth":
                raise _refused(error, request.login, initialized) from error
            raise
        methods = methods_of(initialized, error)
        await authenticate(connection, methods, request.login, deadlines, error_text(error))
    try:
        return await connection.request(method, params, timeout=timeout)
    except RpcError as error:
        if error.code == AUTH_REQUIRED:
            raise _refused(error, request.login, initialized) from error
        raise


async def authenticate(
    connection: Connection,
    methods: Sequence[AuthMethod],
    login: Login,
    deadlines: Deadlines,
    complaint: str,
) -> None:
    """Send `authenticate` with the methods that fit the credentials of the agent, until one is accepted.

    `complaint`: the agent's message when it required a login.

    Raises AgentFailure (ACPAuthRequired) if none fits, or the agent refuses all of them.
    """
    refused = []
    for params in login.params(methods):
        try:
            await connection.request("authenticate", params, timeout=deadlines.authenticate)
        except RpcError as error:
            refused.append(f"authenticate fails with {error_text(error)}")
        except RequestTimeout:
            refused.append(f"no answer to authenticate within {deadlines.authenticate:g} s")
            break
        else:
            return
    raise auth_required("; ".join([complaint, *refused]), login.needed(methods))


def add_choices(failure: AgentFailure, login: Login, initialized: InitializeResult | None) -> None:
    """Add what a person can do about it to a failure for lack of credentials, unless it is already there."""
    if failure.code == "ACPAuthRequired" and failure.choices is None:
        failure.choices = login.needed(() if initialized is None else initialized.auth_methods)
        failure.detail += what_would_help(failure.choices)


def methods_of(initialized: InitializeResult, error: RpcError) -> Sequence[AuthMethod]:
    """The login methods that the agent offers; some agents send them only with the error."""
    return initialized.auth_methods or parse_auth_methods(as_object(error.data))


def _refused(error: RpcError, login: Login, initialized: InitializeResult) -> AgentFailure:
    return auth_required(error_text(error), login.needed(methods_of(initialized, error)))


def startup_timeout(what: str, seconds: float) -> AgentFailure:
    """The failure of a start that took too long; `what` is what the agent did not do."""
    return AgentFailure(
        STARTUP_TIMEOUT,
        f"The agent did not {what} within {seconds:g} s.",
        kind="transient",
        retryable=True,
        user_action="retry",
    )


def lost(error: ConnectionLost, code: str = "ACPAgentExited") -> AgentFailure:
    """The failure for an agent whose connection ended; its reason has exit status and last output."""
    return AgentFailure(code, str(error), kind="transient", retryable=True, user_action="retry")
