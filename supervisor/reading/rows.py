"""Members of a family as rows of a table, for kinds that no code names. The family names the modules with its
rows (`ELSEWHERE`), which do not know it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from operator import methodcaller
from types import new_class
from typing import Any, Final

import attrs

from supervisor.reading.model import Variant
from supervisor.reading.rules import Limit

Row = Callable[[str, str], dict[str, Any]]
Rows = Mapping[str, Row]
"""By kind."""

FLAG: Final = bool, False
NATURAL: Final = int, attrs.field(validator=Limit(ge=0))
MAYBE_TEXT: Final = str | None, None
MAYBE_TEXTS: Final = tuple[str, ...] | None, None
MAYBE_INT: Final = int | None, None

_defining: Final = threading.Lock()


def limited(hint: Any, default: Any = attrs.NOTHING, **limits: Any) -> tuple[Any, Any]:
    """A property within `Limit(**limits)`, of this type."""
    return hint, attrs.field(default=default, validator=Limit(**limits))


def row(does: str, /, **properties: Any) -> Row:
    """A kind that does this, with these properties, each a type, or a pair of a type and its default."""
    return partial(_body, does, {k: v if type(v) is tuple else (v,) for k, v in properties.items()})


def _body(does: str, properties: Mapping[str, tuple[Any, ...]], module: str, name: str) -> dict[str, Any]:
    hints = {key: value[0] for key, value in properties.items()}
    defaults = {key: value[1] for key, value in properties.items() if len(value) > 1}
    return {
        **defaults,
        "__annotations__": hints,
        "__doc__": does,
        "__module__": module,
        "__qualname__": name,
    }


def define(base: type[Variant]) -> None:
    """Define the members of a family that stand elsewhere, each once."""
    with _defining:
        for module in base.ELSEWHERE:
            for name, body in import_module(module).KINDS.items():
                if name not in base.variants:
                    update = methodcaller("update", body(module, name))
                    # The class enters itself among the kinds of its family.
                    attrs.frozen(kw_only=True)(new_class(name, (base,), exec_body=update))
