"""Settings from text: where a value comes from, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from gateway.configuration.address import ip_address, listed
from supervisor.switches import boolean, switched_on

T = TypeVar("T")


class ConfigError(Exception):
    """A setting that cannot be used. The message is one line for the terminal."""


def pick(
    env: Mapping[str, str],
    variable: str,
    parse: Callable[[str], T],
    default: T,
    *,
    argument: str | None = None,
    option: str = "",
) -> T:
    """The argument if there is one, else the variable, else the default. Raises ConfigError, naming it."""
    text, origin = (argument, option) if argument is not None else (env.get(variable), variable)
    if text is None or (argument is None and text == ""):
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None


def directory(text: str) -> Path:
    """An absolute path; `~` is the home directory. Raises ValueError."""
    if not text:
        raise ValueError("an empty path names no directory")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"the home directory in {text!r} cannot be found; give an absolute path") from None


def positive_int(text: str) -> int:
    """A whole number above zero. Raises ValueError."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value <= 0:
        raise ValueError(f"{text!r} is not a positive whole number")
    return value


def whole_number(text: str) -> int:
    """A whole number, 0 included. Raises ValueError."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def positive_float(text: str) -> float:
    """A number of seconds above zero. Raises ValueError."""
    return positive_number(text, " of seconds")


def positive_number(text: str, of: str = "") -> float:
    """A number above zero. `of`: what it counts, for the error. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a positive number{of}")
    return value


def switch(env: Mapping[str, str], variable: str) -> bool:
    """Whether the variable is on (supervisor/switches.py). Raises ConfigError, naming it."""
    try:
        return switched_on(env, variable)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def keyring_allowed(env: Mapping[str, str]) -> bool:
    """Whether the OS keyring may be used: `auto`, nothing or a word for yes. Raises ConfigError."""
    return pick(env, "OSTLER_KEYRING", lambda text: text.lower() == "auto" or boolean(text), True)


HOST_PATTERN: Final = re.compile(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def hosts(text: str) -> tuple[str, ...]:
    """Names of hosts, with `*.` before one for all below it, or `*`; addresses. Raises ValueError."""
    names = tuple(listed(text))
    for name in names:
        if not HOST_PATTERN.fullmatch(name) and ip_address(name) is None:
            raise ValueError(f"{name!r} is neither name.example nor *.example nor *; without scheme and port")
    return names
