"""What a session can be set to: configuration options, and the older modes and models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from .read import Json, as_object, identifier, member, objects, text


@attrs.frozen
class Choice:
    """One value of a select option; `group` is the heading that the agent shows it under."""

    value: str
    name: str
    description: str | None = None
    group: str | None = None


@attrs.frozen
class ConfigOption:
    """One thing that can be set. `type` is `select` (`current` a string, one of `choices`) or `boolean`."""

    id: str
    name: str
    description: str | None
    category: str | None
    type: str
    current: str | bool | None
    choices: tuple[Choice, ...]
    raw: Json = attrs.field(repr=False)

    def offers(self, value: str) -> bool:
        """Whether `value` is one of the choices."""
        return any(choice.value == value for choice in self.choices)


@attrs.frozen
class Mode:
    """One of the older session modes."""

    id: str
    name: str
    description: str | None


@attrs.frozen
class Modes:
    """The older `modes` block. To be ignored where config options are given."""

    current: str | None
    available: tuple[Mode, ...]


@attrs.frozen
class Model:
    """One of the older session models."""

    id: str
    name: str
    description: str | None


@attrs.frozen
class Models:
    """The older `models` block, removed from the protocol and still sent by some agents."""

    current: str | None
    available: tuple[Model, ...]


@attrs.frozen
class SessionResult:
    """The answer to `session/new`, `load`, `resume` or `fork`.

    Each block is None when the agent did not send it, which is not the same as an empty one.
    `session_id` is None in the answers to `load` and `resume`.
    """

    session_id: str | None
    config_options: tuple[ConfigOption, ...] | None
    modes: Modes | None
    models: Models | None
    raw: Json = attrs.field(repr=False)


def parse_session(result: Any) -> SessionResult:
    """Read the answer to a request that opens a session. A null result is an empty one. Never raises."""
    raw = as_object(result)
    return SessionResult(
        session_id=identifier(raw, "sessionId"),
        config_options=parse_config_options(raw),
        modes=_modes(member(raw, "modes")),
        models=_models(member(raw, "models")),
        raw=raw,
    )


def _modes(raw: Json) -> Modes | None:
    if not raw:
        return None
    available = tuple(
        Mode(mode_id, text(mode, "name") or mode_id, text(mode, "description"))
        for mode in objects(raw, "availableModes") or ()
        if (mode_id := identifier(mode, "id")) is not None
    )
    return Modes(text(raw, "currentModeId"), available)


def _models(raw: Json) -> Models | None:
    if not raw:
        return None
    available = tuple(
        Model(model_id, text(model, "name") or model_id, text(model, "description"))
        for model in objects(raw, "availableModels") or ()
        if (model_id := identifier(model, "modelId")) is not None
    )
    return Models(text(raw, "currentModelId"), available)


def parse_config_options(raw: Json) -> tuple[ConfigOption, ...] | None:
    """The `configOptions` of an object, in the agent's order; None when there are none.

    Options of types that the protocol does not know are left out, as it demands.
    """
    given = objects(raw, "configOptions")
    if given is None:
        return None
    return tuple(option for item in given if (option := _config_option(item)) is not None)


def _config_option(raw: Json) -> ConfigOption | None:
    option_id = identifier(raw, "id")
    kind = raw.get("type", "select")
    if option_id is None or kind not in ("select", "boolean"):
        return None
    current = raw.get("currentValue")
    if not isinstance(current, bool if kind == "boolean" else str):
        current = None
    return ConfigOption(
        id=option_id,
        name=text(raw, "name") or option_id,
        description=text(raw, "description"),
        category=text(raw, "category"),
        type=kind,
        current=current,
        choices=tuple(_choices(raw, None)) if kind == "select" else (),
        raw=raw,
    )


def _choices(raw: Json, group: str | None) -> Iterable[Choice]:
    for item in objects(raw, "options") or ():
        value = text(item, "value")
        if value is not None:
            yield Choice(value, text(item, "name") or value, text(item, "description"), group)
        elif group is None:
            yield from _choices(item, text(item, "name") or text(item, "group") or "")


def find_option(options: Iterable[ConfigOption], name: str) -> ConfigOption | None:
    """The first option whose category is `name`; else the one whose id is."""
    options = tuple(options)
    for option in options:
        if option.category == name:
            return option
    return next((option for option in options if option.id == name), None)


def model_option(options: Iterable[ConfigOption]) -> ConfigOption | None:
    """The option that chooses the model."""
    return find_option((option for option in options if option.type == "select"), "model")


def mode_option(options: Iterable[ConfigOption]) -> ConfigOption | None:
    """The option that chooses the mode, that is, what is asked about before it is done."""
    return find_option((option for option in options if option.type == "select"), "mode")


def set_option_params(session_id: str, option_id: str, value: str | bool) -> dict[str, Any]:
    """The parameters of `session/set_config_option`."""
    params: dict[str, Any] = {"sessionId": session_id, "configId": option_id, "value": value}
    if isinstance(value, bool):
        params["type"] = "boolean"
    return params
