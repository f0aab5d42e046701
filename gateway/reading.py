"""Reading untrusted JSON objects and query strings field by field, collecting what is wrong with them.

A `Reader` never raises while fields are read; `finish` raises one `Invalid` with everything found, so
that a client learns of all its mistakes at once. Error types and messages are those that clients of the
wire know (pydantic's). Properties that nobody reads are ignored, as the wire has it for requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from werkzeug.datastructures import MultiDict

from supervisor.acp.schema import cut
from supervisor.reading import ErrorDetail

Loc = tuple[str | int, ...]

UUID_FORM = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


NOT_A_UUID = "Input should be a valid UUID"

MAX_INTEGER = 2**53 - 1
"""The largest whole number that every client can read back: JavaScript's numbers are exact up to it."""

MAX_TAG_CHARACTERS = 256
"""The wire's limit of a tag's value, and ours of its name."""


MAX_TAGS = 100
"""Tags of one conversation: they are part of every look at it."""

PROBLEMS_LISTED = 100
"""Mistakes that one answer lists; the others are counted. A body can hold some ten million."""

TOO_MANY = "too_many_errors"
"""The type of what stands for the others."""

LOC_PARTS = 20
"""Parts of the place of a mistake that are told."""

NAME_CHARACTERS = 200
"""How much is repeated of a name that a client gave, characters."""

MESSAGE_CHARACTERS = 1000
"""Longest message about a mistake: some quote what they are about."""


class Problems(list[ErrorDetail]):
    """The first of the mistakes in a request, and how many more there are."""

    more = 0

    def note(self, *problems: ErrorDetail) -> None:
        """Add some."""
        kept = problems[: max(0, PROBLEMS_LISTED - len(self))]
        self.extend(kept)
        self.more += len(problems) - len(kept)

    def told(self) -> tuple[ErrorDetail, ...]:
        """What a client is told of them."""
        if not self.more:
            return tuple(self)
        return (*self, ErrorDetail((), f"There are {self.more} more mistakes", TOO_MANY))


def told(problems: Iterable[ErrorDetail]) -> tuple[ErrorDetail, ...]:
    """Mistakes in a form that no client can blow up: so many, and so much of each."""
    listed = tuple(problems)
    if len(listed) > PROBLEMS_LISTED and listed[PROBLEMS_LISTED].type != TOO_MANY:
        first = Problems()
        first.note(*listed)
        listed = first.told()
    return tuple(
        ErrorDetail(tuple(map(_part, each.loc[:LOC_PARTS])), cut(each.msg, MESSAGE_CHARACTERS), each.type)
        for each in listed
    )


def _part(part: str | int) -> str | int:
    return cut(part, NAME_CHARACTERS) if isinstance(part, str) else part


class Invalid(Exception):
    """A request that does not fit its schema; answered with 422. Has no more of the problems than is told."""

    def __init__(self, *problems: ErrorDetail) -> None:
        self.problems = told(problems)
        super().__init__("; ".join(f"{'.'.join(map(str, p.loc))}: {p.msg}" for p in self.problems))


class _Absent:
    """The value of a property that is not there, which is not the same as null."""


ABSENT = _Absent()


class Reader:
    """Reads the properties of one JSON object. `loc` is the object's own path."""

    def __init__(self, obj: Any, loc: Loc, problems: Problems | None = None) -> None:
        self.loc = loc
        self.problems = Problems() if problems is None else problems
        if isinstance(obj, Mapping):
            self.obj: Mapping[str, Any] = obj
        else:
            self.obj = {}
            self.wrong(
                (),
                "Input should be a valid dictionary or object to extract fields from",
                "model_attributes_type",
            )

    def wrong(self, loc: Loc, msg: str, type: str) -> None:  # noqa: A002 - the wire's own word
        """Note a problem at `loc` below this object."""
        self.problems.note(ErrorDetail(self.loc + loc, msg, type))

    def finish(self) -> None:
        """Raise Invalid if anything was wrong."""
        if self.problems:
            raise Invalid(*self.problems.told())

    def has(self, key: str) -> bool:
        """Whether the property is there and not null."""
        return self.obj.get(key) is not None

    def string(
        self,
        key: str,
        default: str | None = None,
        *,
        required: bool = False,
        min_length: int = 0,
        max_length: int | None = None,
    ) -> str | None:
        """A string property; lengths in characters."""
        found = self._take(key, required)
        if found is ABSENT:
            return default
        if not isinstance(found, str):
            self.wrong((key,), "Input should be a valid string", "string_type")
            return default
        if len(found) < min_length:
            self.wrong((key,), f"String should have at least {min_length} character", "string_too_short")
        elif max_length is not None and len(found) > max_length:
            self.wrong((key,), f"String should have at most {max_length} characters", "string_too_long")
        return found

    def text(self, key: str) -> str:
        """A required string."""
        return self.string(key, required=True) or ""

    def flag(self, key: str, default: bool = False, *, required: bool = False) -> bool:
        """A boolean property."""
        found = self._take(key, required)
        if found is ABSENT:
            return default
        if not isinstance(found, bool):
            self.wrong((key,), "Input should be a valid boolean", "bool_type")
            return default
        return found

    def integer(self, key: str, default: int, *, minimum: int | None = None) -> int:
        """A whole-number property; JSON's 5.0 counts as 5."""
        found = self._take(key, False)
        if found is ABSENT:
            return default
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            self.wrong((key,), "Input should be a valid integer", "int_type")
            return default
        if minimum is not None and found < minimum:
            self.wrong((key,), f"Input should be greater than or equal to {minimum}", "greater_than_equal")
        elif abs(found) > MAX_INTEGER:
            self.wrong((key,), f"Input should be less than or equal to {MAX_INTEGER}", "less_than_equal")
        return found

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of a few strings."""
        found = self._take(key, False)
        if found is ABSENT:
            return default
        if found not in allowed:
            self.wrong((key,), _expected(allowed), "enum")
            return default
        return str(found)

    def uuid(self, key: str) -> str | None:
        """A UUID property in either form, as the dashed one."""
        found = self.string(key)
        if found is None:
            return None
        dashed = dashed_uuid(found)
        if dashed is None:
            self.wrong((key,), NOT_A_UUID, "uuid_parsing")
        return dashed

    def mapping(self, key: str, *, required: bool = False) -> dict[str, Any] | None:
        """An object property, as it is."""
        found = self._take(key, required)
        if found is ABSENT:
            return None
        if not isinstance(found, dict):
            self.wrong((key,), "Input should be a valid dictionary", "dict_type")
            return None
        return found

    def array(self, key: str) -> list[Any] | None:
        """An array property, as it is."""
        found = self._take(key, False)
        if found is ABSENT:
            return None
        if not isinstance(found, list):
            self.wrong((key,), "Input should be a valid list", "list_type")
            return None
        return found

    def strings(self, key: str) -> dict[str, str] | None:
        """An object of strings."""
        found = self.mapping(key)
        if found is None:
            return None
        for name, value in found.items():
            if not isinstance(value, str):
                self.wrong((key, name), "Input should be a valid string", "string_type")
        return found

    def tags(self, key: str) -> dict[str, str] | None:
        """Tags: at most 100, with lower-case alphanumeric names and values of at most 256 characters."""
        before = len(self.problems)
        found = self.strings(key)
        if len(self.problems) > before:
            return None
        if found and len(found) > MAX_TAGS:
            msg = f"Dictionary should have at most {MAX_TAGS} items, not {len(found)}"
            self.wrong((key,), msg, "too_long")
            return None
        for name, value in (found or {}).items():
            if len(name) > MAX_TAG_CHARACTERS:
                msg = f"Tag names have at most {MAX_TAG_CHARACTERS} characters"
                self.wrong((key, name), msg, "value_error")
            elif not re.fullmatch(r"[a-z0-9]+", name):
                self.wrong((key, name), "Tag names hold lower-case letters and digits only", "value_error")
            elif len(value) > MAX_TAG_CHARACTERS:
                self.wrong(
                    (key, name),
                    f"String should have at most {MAX_TAG_CHARACTERS} characters",
                    "string_too_long",
                )
        return found

    def below(self, key: str, obj: Any) -> Reader:
        """A reader of a nested object that notes its problems here."""
        return Reader(obj, (*self.loc, key), self.problems)

    def _take(self, key: str, required: bool) -> Any:
        found = self.obj.get(key, ABSENT)
        if found is None:
            found = ABSENT
        if found is ABSENT and required:
            self.wrong((key,), "Field required", "missing")
        return found


class Query:
    """Reads a query string. A parameter given twice takes its last value, as the wire's servers do."""

    def __init__(self, values: MultiDict[str, str]) -> None:
        self.values = values
        self.problems = Problems()

    def wrong(self, key: str, msg: str, type: str) -> None:  # noqa: A002 - the wire's own word
        """Note a problem with the parameter."""
        self.problems.note(ErrorDetail(("query", key), msg, type))

    def finish(self) -> None:
        """Raise Invalid if anything was wrong."""
        if self.problems:
            raise Invalid(*self.problems.told())

    def text(self, key: str) -> str | None:
        """The last value, or None."""
        found = self.values.getlist(key)
        return found[-1] if found else None

    def all(self, key: str) -> list[str]:
        """Every value, in order."""
        return self.values.getlist(key)

    def integer(self, key: str, default: int, *, minimum: int, maximum: int) -> int:
        """A whole number within bounds, both included."""
        found = self.text(key)
        if found is None:
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", found):
            self.wrong(
                key, "Input should be a valid integer, unable to parse string as an integer", "int_parsing"
            )
            return default
        value = int(found)
        if value < minimum:
            self.wrong(key, f"Input should be greater than or equal to {minimum}", "greater_than_equal")
        elif value > maximum:
            self.wrong(key, f"Input should be less than or equal to {maximum}", "less_than_equal")
        return value

    def uuid(self, key: str, text: str, index: int) -> str:
        """One value of a repeated parameter, which must be a UUID, as the dashed form."""
        dashed = dashed_uuid(text)
        if dashed is None:
            self.problems.note(ErrorDetail(("query", key, index), NOT_A_UUID, "uuid_parsing"))
        return dashed or ""

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        """One of a few strings, or None when the parameter is not given."""
        found = self.text(key)
        if found is not None and found not in allowed:
            self.wrong(key, _expected(allowed), "enum")
            return None
        return found


def dashed_uuid(text: str) -> str | None:
    """A UUID in either form (dashed or 32 hex digits) as the dashed one; None if it is none."""
    return str(UUID(text)) if UUID_FORM.fullmatch(text) else None


def path_uuid(text: str, name: str) -> str:
    """A path parameter that must be a UUID in either form, as the dashed one. Raises Invalid."""
    found = dashed_uuid(text)
    if found is None:
        raise Invalid(ErrorDetail(("path", name), NOT_A_UUID, "uuid_parsing"))
    return found


def _expected(allowed: Sequence[str]) -> str:
    quoted = [f"'{value}'" for value in allowed]
    return "Input should be " + (
        " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
    )
