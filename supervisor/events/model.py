"""What an object of the wire is made of, before any of them is defined: base classes, limits, markers.

A type is written once, as an attrs class. The codec, the schema and the tests are derived from it:

* an annotation says what a property holds, `X | None` that it may be null;
* `validator=Limit(...)` narrows it, for the constructor, the decoder and the schema alike;
* `metadata=EXTENDED` says that it is no part of the core vocabulary;
* `metadata=wire_name("...")` gives the name on the wire where it is not the attribute's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

import attrs


class Vocabulary(enum.StrEnum):
    """Which clients an event is written for.

    CORE has the kinds and the properties of the interface specification and no others; EXTENDED has what
    the clients of the OpenHands agent server know as well.
    """

    CORE = "core"
    EXTENDED = "extended"


EXTENDED: Final[Mapping[str, Any]] = {"extended": True}
"""Metadata of a property that the core vocabulary does not have."""


def wire_name(name: str) -> Mapping[str, Any]:
    """Metadata of a property whose name on the wire is not the attribute's."""
    return {"wire_name": name}


@attrs.frozen(kw_only=True)
class Limit:
    """A range that a value must keep to. Null is always within it.

    `ge` and `le` bound a number, `min_length` and `max_length` count the characters of a string, `date_time`
    asks for an ISO 8601 date and time.
    """

    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    date_time: bool = False

    def broken_by(self, value: Any) -> tuple[str, str] | None:
        """How `value`, which has the right type, breaks the limit: (error type, message), or None."""
        if value is None:
            return None
        # "not >=" rather than "<": it is what NaN fails.
        if self.ge is not None and not value >= self.ge:
            return "greater_than_equal", f"Input should be greater than or equal to {self.ge}"
        if self.le is not None and not value <= self.le:
            return "less_than_equal", f"Input should be less than or equal to {self.le}"
        if self.min_length is not None and len(value) < self.min_length:
            return "string_too_short", f"String should have at least {self.min_length} characters"
        if self.max_length is not None and len(value) > self.max_length:
            return "string_too_long", f"String should have at most {self.max_length} characters"
        if self.date_time and not _is_date_time(value):
            return "datetime_parsing", "Input should be an ISO 8601 date and time"
        return None

    def __call__(self, instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Check a constructor's argument. Raises ValueError."""
        broken = self.broken_by(value)
        if broken is not None:
            raise ValueError(f"{type(instance).__name__}.{attribute.name}: {broken[1]}")

    def schema(self) -> dict[str, Any]:
        """The JSON Schema keywords that say the same."""
        keywords = {
            "minimum": self.ge,
            "maximum": self.le,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "format": "date-time" if self.date_time else None,
        }
        return {name: value for name, value in keywords.items() if value is not None}


def _is_date_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


class Model:
    """An object of the wire.

    `TAG` names the constant property that tells what it is, if it has one; the class attribute of that name
    holds the constant. `FORBID` says that unknown properties are rejected (else they are ignored), `CORE`
    that the core vocabulary has it, `NAME` what the schema calls it.
    """

    __slots__ = ()
    TAG: ClassVar[str | None] = None
    TAG_REQUIRED: ClassVar[bool] = False
    FORBID: ClassVar[bool] = False
    CORE: ClassVar[bool] = True
    NAME: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "NAME" not in cls.__dict__:
            cls.NAME = cls.__name__


class Variant(Model):
    """One member of a family, told apart by the constant `kind`, which is the name of the class.

    A family is a direct subclass that declares `variants`; every class below it enters itself there.
    """

    __slots__ = ()
    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    FORBID: ClassVar[bool] = True
    kind: ClassVar[str]
    variants: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "variants" not in cls.__dict__:
            cls.kind = cls.__name__
            # attrs makes each slotted class twice under one name; the second, final one stays.
            cls.variants[cls.__name__] = cls
