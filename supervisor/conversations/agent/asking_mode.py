"""Finds the mode in which an agent asks before it does something. Pure, but for the request that sets it.

ACP has no word for it: modes have ids, names and descriptions of the agent's own. So this goes by the words
that agents use, and errs towards leaving an agent as it is.

Other servers of the wire put agents into a mode that asks nothing. Here the policy answers each question, so
the agent has to ask.
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
from supervisor.conversations.agent.session import (
    Change,
    Holder,
    Session,
    mode_change,
    open_one,
    option_change,
    request_change,
)
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
"""In the id or name of a mode that does not ask. Letters alone are compared."""

ASKS: Final = (
    *("manual", "approve", "approval", "confirm", "onrequest"),
    *("supervised", "suggest", "alwaysask", "askalways", "askfirst", "askpermission"),
)
"""The id or name of a mode that asks, or the beginning of it."""

USUAL: Final = ("default", "normal", "standard")
"""The same of one that most agents ask in. Where it is described, the description counts."""

TALKS: Final = ("plan", "ask", "chat", "readonly", "architect", "review", "explore", "research", "spec")
"""The id of a mode that does nothing but talk; one that asks only if its description says so."""

SAYS_SO: Final = re.compile(
    r"\b(asks? (you )?(before|for|first|to)|prompts? (you )?(before|for)|requir\w+ (your |user |manual )?"
    r"(approval|confirmation|permission)|(approval|confirmation|permission) (is |are )?(required|needed)|"
    r"(approve|confirm)s? (each|every|all|any)|with (approval|confirmation))",
    re.IGNORECASE,
)
"""In the description of a mode that asks."""

DENIES: Final = re.compile(r"\b(without|no|never|skip\w*|bypass\w*|auto\w*|don'?t)\b", re.IGNORECASE)
"""In a description that means the opposite."""

PARTLY: Final = re.compile(
    r"\b(only|outside|beyond|some|unsafe|risky|dangerous|sensitive|potentially)\b", re.IGNORECASE
)
"""In the description of a mode that asks about some of what it does."""

ALLOWS: Final = re.compile(r"\b(full|unrestricted|complete) (access|control|permissions?)\b", re.IGNORECASE)
"""In the description of a mode that does not ask."""

SWITCHES: Final = re.compile(r"permission|approv|confirm", re.IGNORECASE)
"""In the id or category of an option, other than the mode, that says who is asked."""


class Manner(enum.IntEnum):
    """What an agent does in a mode before it acts; the greater, the rather it is chosen."""

    ACTS = 0
    UNKNOWN = 1
    TALKS = 2
    ASKS_PARTLY = 3
    ASKS_TALKING = 4
    ASKS = 5


@attrs.frozen
class Setting:
    """What has to be set so that an agent asks. `option`: the config option; None: the older `set_mode`."""

    option: str | None
    value: str | bool

    def request(self, session_id: str) -> tuple[str, dict[str, Any]]:
        """The method and its parameters."""
        if self.option is None:
            return "session/set_mode", {"sessionId": session_id, "modeId": self.value}
        return "session/set_config_option", set_option_params(session_id, self.option, self.value)

    @property
    def change(self) -> Change:
        """What it changes of the session."""
        return mode_change(str(self.value)) if self.option is None else option_change(self.option, self.value)


@attrs.frozen
class Found:
    """What a session offers. `mode`: the one that it is in. `asks`: whether that is known to ask. `settings`:
    what makes it ask, if it does not."""

    mode: str | None
    asks: bool
    settings: Sequence[Setting] = ()


def manner(mode_id: str, name: str, description: str | None) -> Manner:
    """What is known of a mode by its words."""
    words = [re.sub(r"[^a-z]", "", each.lower()) for each in (mode_id, name)]
    if any(sign in word for word in words for sign in ACTS):
        return Manner.ACTS
    told = description or ""
    says_so = bool(SAYS_SO.search(told)) and not DENIES.search(told)
    if says_so and PARTLY.search(told):
        return Manner.ASKS_PARTLY
    if words[0] in TALKS:
        return Manner.ASKS_TALKING if says_so else Manner.TALKS
    if says_so or any(word.startswith(ASKS) for word in words):
        return Manner.ASKS
    if ALLOWS.search(told):
        return Manner.ACTS
    if not told and any(word.startswith(USUAL) for word in words):
        return Manner.ASKS
    return Manner.UNKNOWN


def find(result: SessionResult, *, everything: bool) -> Found:
    """How a session is made to ask: about `everything`, or at least about something."""
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

    Returns for clients: `mode`, the one that it is in now; `asks`, whether that is known to ask; `set`,
    whether Ostler chose it.

    Raises ConnectionLost.
    """
    session = open_one(holder)
    found = find(session.result, everything=everything)
    told: dict[str, Any] = {"mode": found.mode, "asks": found.asks, "set": False}
    for setting in found.settings:
        method, params = setting.request(session.session_id)
        try:
            await request_change(holder, method, params, setting.change, deadlines)
        except (RpcError, RequestTimeout) as error:
            log.warning("agent refused the mode that asks", method=method, error=str(error))
            return {**told, "asks": False}
        if isinstance(setting.value, str) and "mode" in (setting.option or "mode"):
            told["mode"] = setting.value
        told |= {"asks": True, "set": True}
    return told


def left_alone(session: Session, mode: str) -> dict[str, Any]:
    """The same for a mode that the settings name: it is kept."""
    return {"mode": mode, "asks": asks_now(session.result, mode), "set": False}


def asks_now(result: SessionResult, mode: str | None) -> bool:
    """Whether an agent is known to ask in this mode with the options as they are; without modes, by those
    options alone."""
    if any(_switches(result)):
        return False
    if mode is None:
        return any(map(_switch, result.config_options or ()))
    return _manners(result).get(mode, Manner.UNKNOWN) >= Manner.ASKS_PARTLY


def _switch(option: ConfigOption) -> bool:
    """Whether an option says who is asked."""
    if option.type == "boolean":
        return manner(option.id, option.name, None) is Manner.ACTS
    return bool(SWITCHES.search(f"{option.id} {option.category or ''}"))


def _manners(result: SessionResult) -> Mapping[str, Manner]:
    option = mode_option(result.config_options or ())
    if option is not None:
        return {each.value: manner(each.value, each.name, each.description) for each in option.choices}
    available = () if result.modes is None else result.modes.available
    return {each.id: manner(each.id, each.name, each.description) for each in available}
