"""The options of a session: configuration options, and the older modes and models."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, Final

import attrs

from supervisor.acp.schema.bounds import EXACT_CHARS, ITEMS_MAX, NAME_CHARS, WORDS_CHARS, Kept
from supervisor.acp.schema.read import Json, as_object, exact_id, line, member, objects, text

_KNOWN_MEMBERS: Final = ("sessionId", "configOptions", "modes", "models")
"""The members of the answer that are interpreted. Others cannot displace them (`Kept.members`)."""


RELATED: Final = frozenset({"effort", "level", "provider", "providers", "reasoning", "thinking", "vendor"})
"""Words in the names of options that are related to a model but do not choose it."""


@attrs.frozen
class Choice:
    """One value of a select option, one of the older modes, or one of the older models."""

    value: str
    name: str
    description: str | None = None


@attrs.frozen
class ConfigOption:
    """A configuration option. `type` is `select` (`current` a string, one of `choices`) or `boolean`."""

    id: str
    name: str
    category: str | None
    type: str
    current: str | bool | None
    choices: tuple[Choice, ...]
    raw: Json = attrs.field(repr=False)

    @property
    def chosen(self) -> str | None:
        """The current choice; None for a boolean option."""
        return self.current if isinstance(self.current, str) else None


@attrs.frozen
class Choices:
    """The older `modes` or `models` block; ignore it if there are config options for the same.

    The protocol no longer has `models`, but some agents still send it.
    """

    current: str | None
    available: tuple[Choice, ...]


@attrs.frozen
class SessionResult:
    """The answer to `session/new`, `load`, `resume` or `fork`.

    Each block is None when the agent did not send it, which is not the same as an empty one.
    `session_id` is None in the answers to `load` and `resume`. `raw` is what is kept of the answer, `lost`
    describes what was dropped.
    """

    session_id: str | None
    config_options: tuple[ConfigOption, ...] | None
    modes: Choices | None
    models: Choices | None
    raw: Json = attrs.field(repr=False)
    lost: str | None = None


def parse_session(result: Any) -> SessionResult:
    """Read the answer to a request that opens a session. A null result is an empty one. Never raises."""
    kept = Kept()
    raw = kept.members(as_object(result), _KNOWN_MEMBERS)
    return SessionResult(
        session_id=exact_id(raw, "sessionId"),
        config_options=parse_config_options(raw),
        modes=_older(member(raw, "modes"), "currentModeId", "availableModes", "id"),
        models=_older(member(raw, "models"), "currentModelId", "availableModels", "modelId"),
        raw=raw,
        lost=kept.lost,
    )


def _older(raw: Json, current: str, available: str, value: str) -> Choices | None:
    if not raw:
        return None
    return Choices(
        exact_id(raw, current),
        tuple(
            Choice(each, line(item, "name", NAME_CHARS) or each, line(item, "description", WORDS_CHARS))
            for item in objects(raw, available) or ()
            if (each := exact_id(item, value)) is not None
        ),
    )


def modes_block(modes: Choices) -> dict[str, Any]:
    """The `modes` block as the protocol writes it."""
    available = [
        {"id": mode.value, "name": mode.name, "description": mode.description} for mode in modes.available
    ]
    return {"currentModeId": modes.current, "availableModes": available}


def parse_config_options(raw: Json) -> tuple[ConfigOption, ...] | None:
    """The `configOptions` of an object, in the agent's order; None when there are none.

    Options of unknown types are left out, as the protocol requires. All options together have at most
    ITEMS_MAX choices.
    """
    given = objects(raw, "configOptions")
    if given is None:
        return None
    options: list[ConfigOption] = []
    left = ITEMS_MAX
    for item in given:
        option = _config_option(item, left)
        if option is not None:
            options.append(option)
            left -= len(option.choices)
    return tuple(options)


def _config_option(raw: Json, most: int) -> ConfigOption | None:
    option_id = exact_id(raw, "id")
    kind = raw.get("type", "select")
    if option_id is None or kind not in ("select", "boolean"):
        return None
    current = raw.get("currentValue")
    if not isinstance(current, bool if kind == "boolean" else str) or _too_long(current):
        current = None
    return ConfigOption(
        id=option_id,
        name=line(raw, "name", NAME_CHARS) or option_id,
        category=line(raw, "category", NAME_CHARS),
        type=kind,
        current=current,
        choices=tuple(itertools.islice(_choices(raw), most)) if kind == "select" else (),
        raw=raw,
    )


def _choices(raw: Json, *, grouped: bool = False) -> Iterable[Choice]:
    for item in objects(raw, "options") or ():
        value = text(item, "value")
        if value is None and not grouped:
            yield from _choices(item, grouped=True)
        elif value is not None and not _too_long(value):
            name = line(item, "name", NAME_CHARS) or value
            yield Choice(value, name, line(item, "description", WORDS_CHARS))


def _too_long(value: str | bool) -> bool:
    """Whether a value is too long to be sent back to the agent unchanged."""
    return isinstance(value, str) and len(value) > EXACT_CHARS


def find_option(options: Iterable[ConfigOption], name: str) -> ConfigOption | None:
    """The option of the category `name`; else the option with that id.

    Of several options of the category it is the one with the best matching name: some agents put related
    options (a model's provider, its effort) into the same category, and before the model.
    """
    options = tuple(options)
    found = [option for option in options if option.category == name]
    if not found:
        return next((option for option in options if option.id == name), None)
    return max(found, key=lambda option: _says(option, name))  # the first of equals


def _says(option: ConfigOption, name: str) -> tuple[bool, ...]:
    """A sort key: how well the id and the name of an option match `name`."""
    words = _words(option.id), _words(option.name)
    return (
        option.id.lower() == name,
        RELATED.isdisjoint((*words[0], *words[1])),
        any(each and each[-1] in (name, f"{name}s") for each in words),
        any(f"{name}id" in "".join(each) for each in words),
        any(name in each for each in words),
    )


def _words(text: str) -> list[str]:
    """The words of a name, however they are joined: `modelId`, `model_id`, `Model ID`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", text)]


def model_option(options: Iterable[ConfigOption]) -> ConfigOption | None:
    """The option that chooses the model."""
    return find_option((option for option in options if option.type == "select"), "model")


def mode_option(options: Iterable[ConfigOption]) -> ConfigOption | None:
    """The option that chooses the mode, that is, which actions need a permission."""
    return find_option((option for option in options if option.type == "select"), "mode")


def set_option_params(session_id: str, option_id: str, value: str | bool) -> dict[str, Any]:
    """The parameters of `session/set_config_option`."""
    params: dict[str, Any] = {"sessionId": session_id, "configId": option_id, "value": value}
    if isinstance(value, bool):
        params["type"] = "boolean"
    return params
