"""Finds the mode in which an agent asks for permissions. Pure, except for the request that sets it.

ACP does not define one: agents choose ids, names and descriptions of modes freely. This module matches the
words that agents use, and in doubt leaves the mode unchanged.

Other servers of this API put agents into a mode that asks nothing. Ostler answers permission requests by
policy, so the agent has to ask.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import structlog

from supervisor.acp import (
    ConfigOption,
    RequestTimeout,
    RpcError,
    SessionResult,
    mode_option,
    set_option_params,
)
from supervisor.conversations.agent.session_choices import (
    Change,
    Holder,
    older_change,
    open_one,
    option_change,
    request_change,
)
from supervisor.conversations.agent.session_setup import Session
from supervisor.conversations.state.deadlines import Deadlines

log = structlog.get_logger(__name__)

ACTS: Final = (
    "yolo",
    "bypass",
    "accept",
    "auto",
    "dontask",
    "fullaccess",
    "unrestricted",
    "dangerous",
    "skip",
)
"""Found in the id or name of a mode that does not ask. Only letters are compared."""

ASKS: Final = (
    *("manual", "approve", "approval", "confirm", "onrequest"),
    *("supervised", "suggest", "alwaysask", "askalways", "askfirst", "askpermission"),
)
"""Prefixes of the id or name of a mode that asks."""

USUAL: Final = ("default", "normal", "standard")
"""Prefixes of the id or name of a mode in which most agents ask. A description takes precedence."""

TALKS: Final = ("plan", "ask", "chat", "readonly", "architect", "review", "explore", "research", "spec")
"""Ids of modes that only talk. Such a mode counts as asking only if its description says so."""

SAYS_SO: Final = re.compile(
    r"\b(asks? (you )?(before|for|first|to)|prompts? (you )?(before|for)|requir\w+ (your |user |manual )?"
    r"(approval|confirmation|permission)|(approval|confirmation|permission) (is |are )?(required|needed)|"
    r"(approve|confirm)s? (each|every|all|any)|with (approval|confirmation))",
    re.IGNORECASE,
)
"""Found in the description of a mode that asks."""

DENIES: Final = re.compile(r"\b(without|no|never|skip\w*|bypass\w*|auto\w*|don'?t)\b", re.IGNORECASE)
"""Found in a description with the opposite meaning."""

PARTLY: Final = re.compile(
    r"\b(only|outside|beyond|some|unsafe|risky|dangerous|sensitive|potentially)\b", re.IGNORECASE
)
"""Found in the description of a mode that asks about some actions only."""

ALLOWS: Final = re.compile(r"\b(full|unrestricted|complete) (access|control|permissions?)\b", re.IGNORECASE)
"""Found in the description of a mode that does not ask."""

SWITCHES: Final = re.compile(r"permission|approv|confirm", re.IGNORECASE)
"""Found in the id or category of an option, other than the mode, that controls permissions."""


class Manner(enum.IntEnum):
    """Whether an agent asks in a mode; a greater value is preferred."""

    ACTS = 0
    UNKNOWN = 1
    TALKS = 2
    ASKS_PARTLY = 3
    ASKS_TALKING = 4
    ASKS = 5


@attrs.frozen
class Setting:
    """A setting that makes an agent ask. `option`: the config option; None: the older `set_mode`."""

    option: str | None
    value: str | bool

    def request(self, session_id: str) -> tuple[str, dict[str, Any]]:
        """The method and its parameters."""
        if self.option is None:
            return "session/set_mode", {"sessionId": session_id, "modeId": self.value}
        return "session/set_config_option", set_option_params(session_id, self.option, self.value)

    @property
    def change(self) -> Change:
        """Its effect on the session's options."""
        return (
            older_change("mode", str(self.value))
            if self.option is None
            else option_change(self.option, self.value)
        )


@attrs.frozen
class Found:
    """What a session offers. `mode`: the current mode. `asks`: whether it is known to ask. `settings`: what
    makes it ask, if it does not."""

    mode: str | None
    asks: bool
    settings: Sequence[Setting] = ()


def manner(mode_id: str, name: str, description: str | None) -> Manner:
    """Classify a mode by its id, name and description."""
    words = [re.sub(r"[^a-z]", "", each.lower()) for each in (mode_id, name)]
    if any(sign in word for word in words for sign in ACTS):
        return Manner.ACTS
    text = description or ""
    says_so = bool(SAYS_SO.search(text)) and not DENIES.search(text)
    if says_so and PARTLY.search(text):
        return Manner.ASKS_PARTLY
    if words[0] in TALKS:
        return Manner.ASKS_TALKING if says_so else Manner.TALKS
    if says_so or any(word.startswith(ASKS) for word in words):
        return Manner.ASKS
    if ALLOWS.search(text):
        return Manner.ACTS
    if not text and any(word.startswith(USUAL) for word in words):
        return Manner.ASKS
    return Manner.UNKNOWN


def find(result: SessionResult, *, everything: bool) -> Found:
    """Find the settings that make a session ask: about `everything`, or at least about something."""
    settings = list(_switches(result))
    option, current = mode_option(result.config_options or ()), None
    if option is not None:
        current = option.chosen
    elif result.modes is not None:
        current = result.modes.current
    else:
        return Found(None, False, settings)
    manners = _manners(result)
    enough = Manner.ASKS_TALKING if everything else Manner.ASKS_PARTLY
    now = manners.get(current or "", Manner.UNKNOWN)
    best = max(manners.values(), default=Manner.UNKNOWN)
    if now >= enough or best <= max(now, Manner.TALKS):
        return Found(current, now >= enough and not settings, settings)
    chosen = next(mode_id for mode_id, each in manners.items() if each is best)
    return Found(current, False, [Setting(None if option is None else option.id, chosen), *settings])


def _switches(result: SessionResult) -> Iterable[Setting]:
    """Options besides the mode that keep an agent from asking."""
    mode = mode_option(result.config_options or ())
    for option in result.config_options or ():
        if option is mode or not _switch(option):
            continue
        if option.type == "boolean":
            if option.current is True:
                yield Setting(option.id, False)
        else:
            manners = {each.value: manner(each.value, each.name, each.description) for each in option.choices}
            asking = [value for value, each in manners.items() if each is Manner.ASKS]
            if asking and manners.get(str(option.current)) is not Manner.ASKS:
                yield Setting(option.id, asking[0])


async def ask_first(holder: Holder, deadlines: Deadlines, *, everything: bool) -> dict[str, Any]:
    """Make an agent ask, about `everything` if possible, as far as it offers that. Best effort.

    Returns for clients: `mode`, the current mode; `asks`, whether it is known to ask; `set`, whether Ostler
    chose it.

    Raises ConnectionLost.
    """
    session = open_one(holder)
    found = find(session.result, everything=everything)
    state: dict[str, Any] = {"mode": found.mode, "asks": found.asks, "set": False}
    for setting in found.settings:
        method, params = setting.request(session.session_id)
        try:
            await request_change(holder, method, params, setting.change, deadlines)
        except (RpcError, RequestTimeout) as error:
            log.warning("agent refused the mode that asks", method=method, error=str(error))
            return {**state, "asks": False}
        if isinstance(setting.value, str) and "mode" in (setting.option or "mode"):
            state["mode"] = setting.value
        state |= {"asks": True, "set": True}
    return state


def left_alone(session: Session, mode: str) -> dict[str, Any]:
    """The result of `ask_first` for a mode that the settings name: it is kept."""
    return {"mode": mode, "asks": asks_now(session.result, mode), "set": False}


def asks_now(result: SessionResult, mode: str | None) -> bool:
    """Whether an agent is known to ask in this mode with its present options; without modes, by the options
    alone."""
    if any(_switches(result)):
        return False
    if mode is None:
        return any(map(_switch, result.config_options or ()))
    return _manners(result).get(mode, Manner.UNKNOWN) >= Manner.ASKS_PARTLY


def _switch(option: ConfigOption) -> bool:
    """Whether an option controls permissions."""
    if option.type == "boolean":
        return manner(option.id, option.name, None) is Manner.ACTS
    return bool(SWITCHES.search(f"{option.id} {option.category or ''}"))


def _manners(result: SessionResult) -> Mapping[str, Manner]:
    option = mode_option(result.config_options or ())
    if option is not None:
        available = option.choices
    else:
        available = () if result.modes is None else result.modes.available
    return {each.value: manner(each.value, each.name, each.description) for each in available}
