"""Switches: settings that are on or off, from variables. One grammar for all of them.

Uses only the standard library, and nothing that is not loaded yet: a process calls it before it hides its
keys.
"""

from __future__ import annotations

from collections.abc import Mapping

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})
WORDS = "use 1, true, yes or on, or 0, false, no or off"


def boolean(text: str) -> bool:
    """Read `1`, `true`, `yes` or `on`, and `0`, `false`, `no` or `off`, in upper or lower case.

    Raises `ValueError`, in one line, for everything else, including a word with blanks around it.
    """
    word = text.lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError(f"{text!r} is not a boolean; {WORDS}")


def switched_on(env: Mapping[str, str], variable: str) -> bool:
    """Whether the variable is set to a word for yes. An unset or empty one is off.

    Raises `ValueError`, in one line that names the variable, for what is not a boolean.
    """
    text = env.get(variable)
    if not text:
        return False
    try:
        return boolean(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None
