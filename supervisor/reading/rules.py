"""Rules: what a value of the right type has to keep to beyond its type, for decoder and schema alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
import orjson

from supervisor.reading.model import Errors, Location

NO_NUL_PATTERN: Final = "^[^\\u0000]*$"


class Rule:
    """One rule. Values are never null: that is the type's business."""

    __slots__ = ()

    def read(self, value: Any, loc: Location, errors: Errors) -> Any:
        """The value, perhaps in its usual form. Notes what is wrong with it."""
        raise NotImplementedError

    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema keywords that say the same, as far as they can."""
        return {}


@attrs.frozen(kw_only=True)
class Limit(Rule):
    """A range that a value must keep to. Null is always within it.

    `ge`, `gt`, `le` and `lt` bound a number, `min_length` and `max_length` count the characters of a string
    or the items of a list or an object, `pattern` is what a whole string matches, and `date_time` asks for an
    ISO 8601 date and time. `nul=False` refuses NUL, which no argument, path or variable of a process can
    hold.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: re.Pattern[str] | None = None
    date_time: bool = False
    nul: bool = True

    def broken_by(self, value: Any) -> tuple[str, str] | None:
        """How `value`, which has the right type, breaks the limit: (error type, message), or None."""
        if value is None:
            return None
        # "not >=" rather than "<": it is what NaN fails.
        if self.ge is not None and not value >= self.ge:
            return "greater_than_equal", f"Input should be greater than or equal to {self.ge}"
        if self.gt is not None and not value > self.gt:
            return "greater_than", f"Input should be greater than {self.gt}"
        if self.le is not None and not value <= self.le:
            return "less_than_equal", f"Input should be less than or equal to {self.le}"
        if self.lt is not None and not value < self.lt:
            return "less_than", f"Input should be less than {self.lt}"
        if self.min_length is not None and len(value) < self.min_length:
            return self._length(value, "least", self.min_length)
        if self.max_length is not None and len(value) > self.max_length:
            return self._length(value, "most", self.max_length)
        if not self.nul and "\0" in value:
            return "value_error", "String must not contain a NUL character"
        if self.pattern is not None and not self.pattern.fullmatch(value):
            return "string_pattern_mismatch", f"String should match pattern '^{self.pattern.pattern}$'"
        if self.date_time and not _is_date_time(value):
            return "datetime_parsing", "Input should be an ISO 8601 date and time"
        return None

    def read(self, value: Any, loc: Location, errors: Errors) -> Any:
        """The value as it is."""
        broken = self.broken_by(value)
        if broken is not None:
            errors.add(loc, *broken)
        return value

    def __call__(self, instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Check a constructor's argument. Raises ValueError."""
        broken = self.broken_by(value)
        if broken is not None:
            raise ValueError(f"{type(instance).__name__}.{attribute.name}: {broken[1]}")

    def schema(self) -> dict[str, Any]:
        """The JSON Schema keywords that say the same of a number or a string."""
        keywords = {
            "minimum": self.ge,
            "exclusiveMinimum": self.gt,
            "maximum": self.le,
            "exclusiveMaximum": self.lt,
            "minLength": self.min_length,
            "maxLength": self.max_length,
            "pattern": None if self.pattern is None else f"^{self.pattern.pattern}$",
            "format": "date-time" if self.date_time else None,
        }
        if not self.nul and self.pattern is None:
            keywords["pattern"] = NO_NUL_PATTERN
        return {name: value for name, value in keywords.items() if value is not None}

    @staticmethod
    def _length(value: Any, bound: str, length: int) -> tuple[str, str]:
        end = "short" if bound == "least" else "long"
        if isinstance(value, str):
            characters = "character" if length == 1 else "characters"
            return f"string_too_{end}", f"String should have at {bound} {length} {characters}"
        kind = "Dictionary" if isinstance(value, Mapping) else "List"
        items = "item" if length == 1 else "items"
        found = "" if bound == "least" else f", not {len(value)}"
        return f"too_{end}", f"{kind} should have at {bound} {length} {items}{found}"


def _is_date_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


@attrs.frozen(kw_only=True)
class Items(Limit):
    """How many items a list has."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema keywords that say the same of a list."""
        keywords = {"minItems": self.min_length, "maxItems": self.max_length}
        return {name: value for name, value in keywords.items() if value is not None}


@attrs.frozen(kw_only=True)
class Properties(Limit):
    """How many properties an object has."""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema keywords that say the same of an object."""
        keywords = {"minProperties": self.min_length, "maxProperties": self.max_length}
        return {name: value for name, value in keywords.items() if value is not None}


@attrs.frozen(eq=False)
class Form(Rule):
    """A form that a text has, and its usual spelling: `parse` gives that, or raises ValueError with what is
    wrong, which must not quote the text. `keywords` say the same as a schema, as far as they can."""

    parse: Callable[[Any], Any]
    keywords: Mapping[str, Any] = attrs.field(factory=dict)
    error: str = "value_error"

    def read(self, value: Any, loc: Location, errors: Errors) -> Any:
        """The value in its usual spelling."""
        try:
            return self.parse(value)
        except ValueError as error:
            said = f"Value error, {error}" if self.error == "value_error" else str(error)
            errors.add(loc, self.error, said)
            return value

    def schema(self) -> Mapping[str, Any]:
        """As it was given."""
        return self.keywords


@attrs.frozen
class Size(Rule):
    """How many bytes of JSON an untyped value may have."""

    most: int
    """Bytes."""

    def read(self, value: Any, loc: Location, errors: Errors) -> Any:
        """The value as it is."""
        if len(orjson.dumps(value)) > self.most:
            errors.add(loc, "too_long", f"Input should have at most {self.most} bytes of JSON")
        return value


@attrs.frozen
class Names(Rule):
    """The pattern that each property name of an object must match as a whole; `said` describes it for
    people."""

    pattern: re.Pattern[str]
    said: str

    def read(self, value: Any, loc: Location, errors: Errors) -> Any:
        """The object as it is."""
        for name in value:
            if not self.pattern.fullmatch(name):
                errors.add((*loc, name), "value_error", f"Value error, {self.said}")
                if errors.more:
                    break
        return value

    def schema(self) -> Mapping[str, Any]:
        """The same."""
        return {"propertyNames": {"pattern": f"^{self.pattern.pattern}$"}}


NO_NUL: Final = Limit(nul=False)
FILLED: Final = Limit(min_length=1)
ABOVE_ZERO: Final = Limit(gt=0)
