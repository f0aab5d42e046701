"""Changes a live session's mode and configuration options, and reapplies them in later sessions."""

from __future__ import annotations

from typing import Final

import attrs

from supervisor.acp import (
    mode_option,
    model_option,
    parse_session,
    set_option_params,
)
from supervisor.acp.schema import NAME_CHARS, WORDS_CHARS, cut
from supervisor.conversations.agent.asking_mode import asks_now, left_alone
from supervisor.conversations.agent.session_choices import (
    OFFERED_MAX,
    Holder,
    older_change,
    open_one,
    option_change,
    require_change,
    require_offered,
)
from supervisor.conversations.agent.session_setup import Session
from supervisor.conversations.resource.status_publisher import Refusal
from supervisor.conversations.state.confirmation import CONFIRMATION, may_ask
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentTimeout, NotAccepted
from supervisor.conversations.state.record import ConversationRecord

Value = str | bool

KEPT_MAX: Final = 100
"""The most options of a conversation that are kept for later sessions. Agents have two to ten."""


async def set_mode(holder: Holder, mode: str, deadlines: Deadlines) -> Session:
    """Put the open session into a mode, by its option or the older method; return the changed session.

    Raises NotAccepted (the agent has no such mode, or none, or refuses), AgentTimeout, AgentFailure.
    """
    session = open_one(holder)
    option, modes = mode_option(session.result.config_options or ()), session.result.modes
    if option is not None:
        return await set_option(holder, option.id, mode, deadlines)
    if modes is None:
        raise NotAccepted("The agent has no modes.")
    require_offered(f"mode {mode!r}", mode, [each.value for each in modes.available])
    params = {"sessionId": session.session_id, "modeId": mode}
    await require_change(
        holder, "session/set_mode", params, older_change("mode", mode), f"mode {mode!r}", deadlines
    )
    return open_one(holder)


async def set_option(holder: Holder, option_id: str, value: Value, deadlines: Deadlines) -> Session:
    """Set a configuration option of the open session; return the changed session.

    Raises NotAccepted (the agent has no such option or value, refuses it, or answers with another one),
    AgentTimeout, AgentFailure.
    """
    session = open_one(holder)
    options = session.result.config_options or ()
    option = next((each for each in options if each.id == option_id), None)
    if option is None:
        offered = ", ".join(each.id for each in options[:OFFERED_MAX]) or "none"
        raise NotAccepted(f"Unknown option {cut(option_id, NAME_CHARS)!r}. The agent offers: {offered}.")
    what = f"value {cut(str(value), WORDS_CHARS)!r} of the option {cut(option_id, NAME_CHARS)!r}"
    if isinstance(value, bool) is not (option.type == "boolean"):
        raise NotAccepted(
            f"The option {option_id!r} takes {'true or false' if option.type == 'boolean' else 'text'}."
        )
    if isinstance(value, str):
        require_offered(what, value, [choice.value for choice in option.choices])
    params = set_option_params(session.session_id, option_id, value)
    change = option_change(option_id, value)
    answer = await require_change(holder, "session/set_config_option", params, change, what, deadlines)
    for each in parse_session(answer or {}).config_options or ():
        if each.id == option_id and each.current is not None and each.current != value:
            raise NotAccepted(f"The agent does not take the {what}: it answers that it has {each.current!r}.")
    return open_one(holder)


def check_room(record: ConversationRecord, option_id: str) -> None:
    """Raise NotAccepted if the conversation keeps KEPT_MAX options already."""
    if option_id not in record.options and len(record.options) >= KEPT_MAX:
        raise NotAccepted(f"At most {KEPT_MAX} options of a conversation are kept.")


def note_mode(record: ConversationRecord, session: Session, mode: str) -> None:
    """Keep a mode that a client chose for later sessions."""
    option = mode_option(session.result.config_options or ())
    record.agent = attrs.evolve(record.agent, acp_session_mode=mode)
    if option is not None:
        record.options.pop(option.id, None)
    if may_ask(record.confirmation_policy):
        known = record.reported.agent_state.get(CONFIRMATION, {})
        record.reported.agent_state[CONFIRMATION] = {**known, **left_alone(session, mode)}


def note_option(record: ConversationRecord, session: Session, option_id: str, value: Value) -> None:
    """Keep an option that a client set for later sessions. Model and mode are kept as settings of the
    agent."""
    options = session.result.config_options or ()
    model, mode = model_option(options), mode_option(options)
    if mode is not None and option_id == mode.id:
        note_mode(record, session, str(value))
    elif model is not None and option_id == model.id:
        record.agent = attrs.evolve(record.agent, acp_model=str(value))
        record.reported.current_model = record.reported.agent_state["acp_current_model_id"] = str(value)
    else:
        record.options[option_id] = value
        record.reported.agent_state[OPTIONS] = dict(record.options)
        known = record.reported.agent_state.get(CONFIRMATION)
        if known is not None and may_ask(record.confirmation_policy):
            asks = asks_now(session.result, known["mode"])
            record.reported.agent_state[CONFIRMATION] = {**known, "asks": asks}


OPTIONS: Final = "acp_options"
"""The member of `agent_state` with the options that clients set."""


async def set_again(holder: Holder, record: ConversationRecord, deadlines: Deadlines) -> list[Refusal]:
    """Reapply the options of earlier sessions in a new one; return what the agent refused.

    Raises AgentFailure if the agent is gone.
    """
    refused = []
    for option_id, value in record.options.items():
        options = open_one(holder).result.config_options or ()
        option = next((each for each in options if each.id == option_id), None)
        if option is not None and option.current == value:
            continue
        try:
            await set_option(holder, option_id, value, deadlines)
        except (NotAccepted, AgentTimeout) as error:
            current = None if option is None or option.current is None else str(option.current)
            refused.append(Refusal(option_id, str(value), str(error).removesuffix("."), current))
    return refused
