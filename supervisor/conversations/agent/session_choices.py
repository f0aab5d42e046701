"""What can be chosen of an open session: its model, its mode and its options. Requests change them, and their
answers are applied before any later message of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs
import orjson

from supervisor.acp import (
    Choices,
    ConfigOption,
    Connection,
    ConnectionLost,
    RequestTimeout,
    Result,
    RpcError,
    SessionResult,
    error_text,
    mode_option,
    model_option,
    parse_session,
    set_option_params,
)
from supervisor.acp.schema import WORDS_CHARS, cut
from supervisor.conversations.agent.session_setup import Session, lost
from supervisor.conversations.resource.status_publisher import Refusal
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentTimeout, NotAccepted
from supervisor.conversations.state.record import ConversationRecord

MODELS_BYTES: Final = 64 * 1024
"""The most bytes of JSON in the list of an agent's models.

The list is in the conversation's resource twice, and a page has a hundred of those. The longest list of a
known agent takes half of it.
"""


OFFERED_MAX: Final = 50
"""The most choices that an error lists."""

NO_CHOICE: Final = "The agent does not let its model be chosen."


Kind: TypeAlias = Literal["mode", "model"]


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


def older_change(what: Kind, value: str) -> Change:
    """The change by setting the older mode or model."""

    def change(result: SessionResult, _: Any) -> SessionResult:
        _, older, _ = offered(result, what)
        changed: dict[str, Any] = {} if older is None else {f"{what}s": attrs.evolve(older, current=value)}
        return attrs.evolve(result, **changed)

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
    option, older, current = offered(result, "model")
    if option is None and older is None:
        return ModelChoice(None, None, False, False)
    choices = option.choices if option is not None else older.available if older is not None else ()
    models = [
        {"model_id": each.value, "name": each.name, "description": each.description} for each in choices
    ]
    shown = _first_of(models)
    return ModelChoice(current, shown, True, option is not None, len(models) - len(shown))


def offered(result: SessionResult, what: Kind) -> tuple[ConfigOption | None, Choices | None, str | None]:
    """What a session offers to choose a mode or a model by: the config option, else the older block; and what
    is chosen now."""
    options = result.config_options or ()
    option, older = (
        (mode_option(options), result.modes) if what == "mode" else (model_option(options), result.models)
    )
    current = option.chosen if option is not None else None if older is None else older.current
    return option, older, current


def _first_of(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first models of the list, as many as fit."""
    left = MODELS_BYTES
    for index, model in enumerate(models):
        left -= len(orjson.dumps(model))
        if left < 0:
            return models[:index]
    return models


async def choose(holder: Holder, what: Kind, value: str, deadlines: Deadlines) -> Refusal | None:
    """Choose a mode or a model, by the config option of that category or the older method.

    An agent that refuses keeps what it has; the refusal is returned. Raises ConnectionLost.
    """
    session = open_one(holder)
    option, older, current = offered(session.result, what)
    if option is not None:
        refused = await _set_option(holder, option, value, deadlines)
    elif older is not None:
        params = {"sessionId": session.session_id, f"{what}Id": value}
        refused, _ = await _set(holder, f"session/set_{what}", params, older_change(what, value), deadlines)
    else:
        refused = "it has no modes" if what == "mode" else "it does not let its model be chosen"
    return None if refused is None else Refusal(what, value, refused, current)


async def set_model(holder: Holder, model: str, deadlines: Deadlines) -> None:
    """Switch the open session to a model.

    Raises NotAccepted (the agent has no such model, has no choice, or refuses), AgentTimeout, AgentFailure.
    """
    session = open_one(holder)
    option = model_option(session.result.config_options or ())
    change = older_change("model", model)
    if option is not None:
        known = [choice.value for choice in option.choices]
        method, params = "session/set_config_option", set_option_params(session.session_id, option.id, model)
        change = option_change(option.id, model)
    elif session.result.models is not None:
        known = [each.value for each in session.result.models.available]
        method, params = "session/set_model", {"sessionId": session.session_id, "modelId": model}
    else:
        raise NotAccepted(NO_CHOICE)
    what = f"model {cut(model, WORDS_CHARS)!r}"
    require_offered(what, model, known)
    await require_change(holder, method, params, change, what, deadlines)


def check_model(record: ConversationRecord, model: str) -> None:
    """Check a model against the last known models of an agent that does not run. Raises NotAccepted."""
    if record.now.sessions and not record.reported.can_switch_model:
        raise NotAccepted(NO_CHOICE)
    if not record.reported.models_cut:
        known = [str(each["model_id"]) for each in record.reported.models or ()]
        require_offered(f"model {cut(model, WORDS_CHARS)!r}", model, known)


def require_offered(what: str, value: str, known: Sequence[str]) -> None:
    """Raise NotAccepted if a value is none of those that are known."""
    if known and value not in known:
        more = f", and {len(known) - OFFERED_MAX} more" if len(known) > OFFERED_MAX else ""
        raise NotAccepted(f"Unknown {what}. The agent offers: {', '.join(known[:OFFERED_MAX])}{more}.")


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
