"""Requests as values: bodies, queries and paths, read as their descriptions say.

Error types and messages are pydantic's, which clients of the wire expect. Unknown properties are ignored, as
the wire prescribes for requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, TypeVar, overload
from uuid import UUID

import attrs
from werkzeug.datastructures import MultiDict

from gateway.api.requests.timestamps import parse_timestamp
from supervisor.acp.schema import cut
from supervisor.reading.decode import attempt, check_of
from supervisor.reading.model import (
    INTEGRAL,
    LOC_PARTS,
    NAME_CHARACTERS,
    Check,
    ErrorDetail,
    Errors,
    Invalid,
    Model,
    Named,
)
from supervisor.reading.rules import Form, Limit
from supervisor.reading.shapes import Elsewhere, ListOf, Narrowed, Scalar, Shape, once_per_type, properties_of

M = TypeVar("M", bound=Model)

UUID_FORM = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

INTEGER_FORM = re.compile(r"[+-]?[0-9]{1,18}")

NOT_A_UUID = "Input should be a valid UUID"

NOT_AN_INTEGER = "Input should be a valid integer, unable to parse string as an integer"

NOT_A_BOOLEAN = "Input should be a valid boolean, unable to interpret input"

BOOLEANS: Final = {
    **dict.fromkeys(("true", "1", "yes", "y", "on", "t"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off", "f"), False),
}
"""Spellings of a boolean in a query, in any case; those of the wire's servers."""

NOT_AN_OBJECT = "Input should be a valid dictionary or object to extract fields from"

MAX_INTEGER = 2**53 - 1
"""The largest whole number that every client can read back: JavaScript's numbers are exact up to it."""

MESSAGE_CHARACTERS = 1000
"""Longest error message, in characters: some quote the input."""


def bounded(problems: Iterable[ErrorDetail]) -> tuple[ErrorDetail, ...]:
    """Mistakes in a form that no client can blow up: so much of each. How many there are, `Errors` bounds."""
    return tuple(
        ErrorDetail(tuple(map(_part, each.loc[:LOC_PARTS])), cut(each.msg, MESSAGE_CHARACTERS), each.type)
        for each in problems
    )


def _part(part: str | int) -> str | int:
    return cut(part, NAME_CHARACTERS) if isinstance(part, str) else part


class InvalidRequest(Invalid):
    """A request that does not fit its description; answered with 422."""

    def __init__(self, *problems: ErrorDetail) -> None:
        super().__init__(bounded(problems))


def refuse(errors: Errors) -> None:
    """Raise InvalidRequest unless there is no error."""
    if errors:
        raise InvalidRequest(*errors.reported())


def dashed_uuid(text: str) -> str | None:
    """A UUID in either form (dashed or 32 hex digits) as the dashed one; None if it is none."""
    return str(UUID(text)) if UUID_FORM.fullmatch(text) else None


def _dashed(text: str) -> str:
    found = dashed_uuid(text)
    if found is None:
        raise ValueError(NOT_A_UUID)
    return found


AnyUuid = Annotated[str, Form(_dashed, {"format": "uuid"}, "uuid_parsing")]
"""A UUID in either form, as the dashed one."""


def _moment(text: str) -> str:
    try:
        return parse_timestamp(text)
    except ValueError:
        raise ValueError("Input should be a valid datetime") from None


Moment = Annotated[str, Form(_moment, {"format": "date-time"}, "datetime_parsing")]
"""A date and time, in the form that the journal compares."""

Whole = Annotated[int, INTEGRAL, Limit(le=MAX_INTEGER)]
"""A whole number that every client can read back."""


DASHED_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What a UUID becomes."""


def path_uuid(text: str, name: str) -> str:
    """A path parameter that must be a UUID in either form, as the dashed one. Raises InvalidRequest."""
    if DASHED_FORM.fullmatch(text):
        return text
    errors = Errors()
    found: str = attempt(AnyUuid, text, ("path", name), errors)
    refuse(errors)
    return found


class Request(Model):
    """A body of a request, or an object in one. A property that is null counts as one that is not there."""

    __slots__ = ()
    NULL_IS_ABSENT: ClassVar[bool] = True
    CHOICE_ERROR: ClassVar[str] = "enum"


@overload
def read_body(model: type[M], body: Any, named: Mapping[str, Check] | None = None) -> M: ...


@overload
def read_body(model: Any, body: Any, named: Mapping[str, Check] | None = None) -> Any: ...


def read_body(model: Any, body: Any, named: Mapping[str, Check] | None = None) -> Any:
    """A body as a `model`; `named` are the checks that its description leaves open. Raises InvalidRequest."""
    errors = Errors(named)
    found = attempt_body(model, body, errors)
    refuse(errors)
    return found


def attempt_body(model: Any, body: Any, errors: Errors) -> Any:
    """The same with errors noted; the result is a `model` where there are none."""
    if isinstance(model, type) and not isinstance(body, Mapping):
        errors.add(("body",), "model_attributes_type", NOT_AN_OBJECT)
        return None
    return attempt(model, body, ("body",), errors)


def read_query(model: type[M], values: MultiDict[str, str], named: Mapping[str, Check] | None = None) -> M:
    """The parameters of a query string as a `model`. One given twice takes its last value, as the wire's
    servers do, unless it is a list. Raises InvalidRequest."""
    errors = Errors(named)
    given: dict[str, Any] = {}
    for name, form in _forms(model):
        texts = values.getlist(name)
        if not texts:
            continue
        if form is list:
            given[name] = texts
        elif form is bool:
            if (word := texts[-1].lower()) in BOOLEANS:
                given[name] = BOOLEANS[word]
            else:
                errors.add(("query", name), "bool_parsing", NOT_A_BOOLEAN)
        elif form is not int:
            given[name] = texts[-1]
        elif INTEGER_FORM.fullmatch(texts[-1]):
            given[name] = int(texts[-1])
        else:
            errors.add(("query", name), "int_parsing", NOT_AN_INTEGER)
    found = attempt(model, given, ("query",), errors)
    refuse(errors)
    assert found is not None
    return found


@once_per_type
def _forms(model: type[Model]) -> tuple[tuple[str, type], ...]:
    """How each parameter is spelled."""
    return tuple((each.name, _form(each.shape)) for each in properties_of(model))


def _form(shape: Shape) -> type:
    while isinstance(shape, Narrowed | Elsewhere):
        shape = shape.shape
    match shape:
        case ListOf():
            return list
        case Scalar((only,)):
            return only
    return str


class Query(Model):
    """The parameters of a query string."""

    __slots__ = ()
    CHOICE_ERROR: ClassVar[str] = "enum"


PAGE_LIMIT: Final = "page_limit"
"""The name of the check of a page's size: how much is allowed is configured."""


PageLimit = Annotated[int, Named(PAGE_LIMIT)]


def page_limit(most: int) -> dict[str, Check]:
    """The check of a page's size, at most `most`."""
    return {PAGE_LIMIT: check_of(Annotated[int, Limit(ge=1, le=most)])}


@attrs.frozen
class Handshake:
    """The query of a WebSocket's handshake. An invalid one is refused as a whole, without a reason."""

    values: MultiDict[str, str]

    def text(self, key: str) -> str | None:
        """The last value, or None."""
        found = self.values.getlist(key)
        return found[-1] if found else None
