"""Opens a session: handshake, credentials, and the fallbacks resume / load / new.

Independent of processes: these are steps over one connection, each with its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
import orjson
import structlog

from supervisor.acp import (
    ConfigOption,
    Connection,
    ConnectionLost,
    InitializeResult,
    RequestTimeout,
    Result,
    RpcError,
    SessionResult,
    UnsupportedProtocolVersion,
    classify_error,
    error_text,
    initialize_params,
    method_offered,
    mode_option,
    model_option,
    parse_initialize,
    parse_session,
    set_option_params,
    shorten_session_id,
)
from supervisor.acp.errors import AUTH_REQUIRED, METHOD_NOT_FOUND
from supervisor.acp.schema import EXACT_CHARS, WORDS_CHARS, cut
from supervisor.acp.schema.handshake import AuthMethod, parse_auth_methods
from supervisor.acp.schema.read import as_object
from supervisor.conversations.agent.launch.login import Login
from supervisor.conversations.resource.status_publisher import Refusal
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure, AgentTimeout, NotAccepted
from supervisor.conversations.state.failures import auth_required, from_rpc, what_would_help
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import Memory

log = structlog.get_logger(__name__)

STARTUP_TIMEOUT: Final = "ACPStartupTimeout"
"""The error code of a start that took too long."""

NO_ACP: Final = "Is its command that of an ACP agent? Some speak ACP only with an argument, such as acp."
DEFECT: Final = "That is a defect of the agent: try another version of it."

MODELS_BYTES: Final = 64 * 1024
"""The most bytes of JSON in the list of an agent's models.

The list is in the conversation's resource twice, and a page has a hundred of those. The longest list of a
known agent takes half of it.
"""


MODELS_LISTED: Final = 50
"""The most models that an error lists."""

NO_CHOICE: Final = "The agent does not let its model be chosen."


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


class Holder(Protocol):
    """The owner of a connection and of the session that is changed over it."""

    @property
    def connection(self) -> Connection:
        """The connection to the agent."""

    session: Session | None


Change: TypeAlias = Callable[[SessionResult, Any], SessionResult]
"""Computes the new offer of a session from the old one and the agent's answer."""


def option_change(option_id: str, value: str | bool) -> Change:
    """The change by setting an option: the options in the answer, else the option with the new value."""

    def change(result: SessionResult, answer: Any) -> SessionResult:
        options = parse_session(answer or {}).config_options
        if options is None and result.config_options:
            known = result.config_options
            options = tuple(_with_value(each, value) if each.id == option_id else each for each in known)
        return result if options is None else attrs.evolve(result, config_options=options)

    return change


def mode_change(mode: str) -> Change:
    """The change by setting the older mode."""

    def change(result: SessionResult, _: Any) -> SessionResult:
        modes = result.modes
        return result if modes is None else attrs.evolve(result, modes=attrs.evolve(modes, current=mode))

    return change


def _model_change(model: str) -> Change:
    """The change by setting the older model."""

    def change(result: SessionResult, _: Any) -> SessionResult:
        models = result.models
        return result if models is None else attrs.evolve(result, models=attrs.evolve(models, current=model))

    return change


async def request_change(
    holder: Holder, method: str, params: Mapping[str, Any], change: Change, deadlines: Deadlines
) -> Any:
    """Request a change of the open session, and return the agent's answer.

    The change is applied to `holder.session` when the answer arrives, before any later message, since the
    agent may report other changes meanwhile. Raises RpcError, RequestTimeout, ConnectionLost.
    """

    def answered(result: Result) -> None:
        session = holder.session
        if result.error is None and session is not None and session.session_id == params["sessionId"]:
            holder.session = attrs.evolve(session, result=change(session.result, result.value))

    return await holder.connection.request(method, params, timeout=deadlines.option, on_response=answered)


async def require_change(
    holder: Holder, method: str, params: Mapping[str, Any], change: Change, what: str, deadlines: Deadlines
) -> Any:
    """As `request_change`, but raises NotAccepted (the agent refuses `what`), AgentTimeout, AgentFailure."""
    try:
        return await request_change(holder, method, params, change, deadlines)
    except RpcError as error:
        raise NotAccepted(f"The agent refuses the {what}: {error_text(error)}") from error
    except RequestTimeout as error:
        raise AgentTimeout(
            "ACPPromptError",
            f"The agent did not answer {method} within {deadlines.option:g} s.",
            kind="transient",
            retryable=True,
            user_action="retry",
        ) from error
    except ConnectionLost as error:
        raise lost(error) from error


def open_one(holder: Holder) -> Session:
    """Return the open session."""
    assert holder.session is not None
    return holder.session


def _with_value(option: ConfigOption, value: str | bool) -> ConfigOption:
    return attrs.evolve(option, current=value, raw={**option.raw, "currentValue": value})


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


@attrs.frozen
class ModelChoice:
    """The models of an agent.

    These are the current one, the available ones (None: unknown), whether another can be chosen, and whether
    by a config option. `left_out` counts those that are not shown.
    """

    current: str | None
    available: list[dict[str, Any]] | None
    switchable: bool
    by_option: bool
    left_out: int = 0


def models_of(result: SessionResult) -> ModelChoice:
    """The models of a session, from its config option of that category, else from the older block."""
    option = model_option(result.config_options or ())
    if option is not None:
        choices = [
            {"model_id": choice.value, "name": choice.name, "description": choice.description}
            for choice in option.choices
        ]
        current = option.chosen
        shown = _first_of(choices)
        return ModelChoice(current, shown, True, True, len(choices) - len(shown))
    if result.models is not None:
        models = [
            {"model_id": model.value, "name": model.name, "description": model.description}
            for model in result.models.available
        ]
        shown = _first_of(models)
        return ModelChoice(result.models.current, shown, True, False, len(models) - len(shown))
    return ModelChoice(None, None, False, False)


def _first_of(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first models of the list, as many as fit."""
    left = MODELS_BYTES
    for index, model in enumerate(models):
        left -= len(orjson.dumps(model))
        if left < 0:
            return models[:index]
    return models


async def choose_model(holder: Holder, model: str, deadlines: Deadlines) -> Refusal | None:
    """Choose a model, by the config option of that category or the older method.

    An agent that refuses keeps its model; the refusal is returned. Raises ConnectionLost.
    """
    session = open_one(holder)
    current = models_of(session.result).current
    option = model_option(session.result.config_options or ())
    if option is not None:
        refused = await _set_option(holder, option, model, deadlines)
    elif session.result.models is not None:
        params = {"sessionId": session.session_id, "modelId": model}
        refused, _ = await _set(holder, "session/set_model", params, _model_change(model), deadlines)
    else:
        refused = "it does not let its model be chosen"
    return None if refused is None else Refusal("model", model, refused, current)


async def set_model(holder: Holder, model: str, deadlines: Deadlines) -> None:
    """Switch the open session to a model.

    Raises NotAccepted (the agent has no such model, has no choice, or refuses), AgentTimeout, AgentFailure.
    """
    session = open_one(holder)
    option = model_option(session.result.config_options or ())
    change = _model_change(model)
    if option is not None:
        known = [choice.value for choice in option.choices]
        method, params = "session/set_config_option", set_option_params(session.session_id, option.id, model)
        change = option_change(option.id, model)
    elif session.result.models is not None:
        known = [each.value for each in session.result.models.available]
        method, params = "session/set_model", {"sessionId": session.session_id, "modelId": model}
    else:
        raise NotAccepted(NO_CHOICE)
    _require(model, known)
    await require_change(holder, method, params, change, f"model {cut(model, WORDS_CHARS)!r}", deadlines)


def check_model(record: ConversationRecord, model: str) -> None:
    """Check a model against the last known models of an agent that does not run. Raises NotAccepted."""
    if record.now.sessions and not record.reported.can_switch_model:
        raise NotAccepted(NO_CHOICE)
    if not record.reported.models_cut:
        _require(model, [str(each["model_id"]) for each in record.reported.models or ()])


def _require(model: str, known: Sequence[str]) -> None:
    if known and model not in known:
        more = f", and {len(known) - MODELS_LISTED} more" if len(known) > MODELS_LISTED else ""
        offered = ", ".join(known[:MODELS_LISTED])
        raise NotAccepted(f"Unknown model {cut(model, WORDS_CHARS)!r}. The agent offers: {offered}{more}.")


async def choose_mode(holder: Holder, mode: str, deadlines: Deadlines) -> Refusal | None:
    """Choose a mode. Never fatal; the refusal is returned. Raises ConnectionLost."""
    session = open_one(holder)
    option = mode_option(session.result.config_options or ())
    modes = session.result.modes
    if option is not None:
        current = option.chosen
        refused = await _set_option(holder, option, mode, deadlines)
    elif modes is not None:
        current = modes.current
        params = {"sessionId": session.session_id, "modeId": mode}
        refused, _ = await _set(holder, "session/set_mode", params, mode_change(mode), deadlines)
    else:
        current, refused = None, "it has no modes"
    return None if refused is None else Refusal("mode", mode, refused, current)


async def _set_option(holder: Holder, option: ConfigOption, value: str, deadlines: Deadlines) -> str | None:
    """Set a config option. Returns the reason if the agent refuses the value, or reports another one."""
    params = set_option_params(open_one(holder).session_id, option.id, value)
    change = option_change(option.id, value)
    refused, answer = await _set(holder, "session/set_config_option", params, change, deadlines)
    if refused is None:
        for each in parse_session(answer or {}).config_options or ():
            if each.id == option.id and isinstance(each.current, str) and each.current != value:
                return "it answers that it has another one"
    return refused


async def _set(
    holder: Holder, method: str, params: Mapping[str, Any], change: Change, deadlines: Deadlines
) -> tuple[str | None, Any]:
    """Send the request. Returns (reason of a refusal, None), or (None, the answer)."""
    try:
        return None, await request_change(holder, method, params, change, deadlines)
    except RpcError as error:
        return error_text(error).removesuffix("."), None
    except RequestTimeout:
        return f"no answer to {method} within {deadlines.option:g} s", None


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
