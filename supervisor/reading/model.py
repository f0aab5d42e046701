"""How untrusted input is described: base classes, what is said of a property beyond its type, and errors.

An object is written down once, as an attrs class. Decoder, errors, JSON Schema and tests are derived from it:

* an annotation says what a property holds, `X | None` that it may be null;
* a rule narrows it (rules.py): `validator=Limit(...)`, or `Annotated[X, rule, ...]`, also of items;
* `Annotated[X, Like(Y)]` is checked as a `Y` and kept as it came, `Annotated[X, Named("...")]` is checked by
  a function that the caller of the decoder brings;
* `metadata=wire_name("...")` gives the name in the input where it is not the attribute's;
* the class variables of `Model` say how null and unknown properties are treated;
* `judge` says what is wrong with the properties together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeVar, cast

import attrs

T = TypeVar("T")

EXTRA: Final = "Extra inputs are not permitted"
"""What is said of a property that is refused."""

Location = tuple[str | int, ...]
"""A location in a document: property names and indexes, from the root."""

Flaw = tuple[Location, str, str]
"""What is wrong: where, the type of the error, the message."""

MAX_ERRORS: Final = 100
"""Most errors listed of one document. At the next one reading stops: hostile input can have millions."""

LOC_PARTS: Final = 20
"""Most parts of an error's location that are reported."""

NAME_CHARACTERS: Final = 200
"""Most characters of an input's name that are repeated."""

TOO_MANY: Final = "too_many_errors"
"""The type of the entry that stands for further errors, which are not searched for."""


def wire_name(name: str) -> Mapping[str, Any]:
    """Metadata of a property whose name in the input is not the attribute's."""
    return {"wire_name": name}


def described(text: str = "", **keywords: Any) -> Mapping[str, Any]:
    """Metadata of a property that the schema says more of: what it is for, and keywords for what is judged
    elsewhere."""
    return {"schema": {**({"description": text} if text else {}), **keywords}}


def said(default: T, text: str) -> T:
    """A field with a default, and a text for its description."""
    field: Any = attrs.field(default=default, metadata=described(text))
    return cast(T, field)


WITHOUT_EFFECT: Final = described("Kept for clients to read; without effect here")
"""Metadata of a property that clients of the wire send and read, and that nothing here uses."""

NEVER_NULL: Final[Mapping[str, Any]] = {"never_null": True}
"""Metadata of a property for which null does not mean its absence, though it does for the others."""


@attrs.frozen
class Like:
    """Checked as `hint`, but kept as it came, with what `hint` does not know."""

    hint: Any


@attrs.frozen
class Integral:
    """A whole number that JSON may also spell as 5.0."""


INTEGRAL: Final = Integral()


@attrs.frozen
class Written:
    """Written as `hint`, and made what the annotation says by a `Form` behind it."""

    hint: Any


@attrs.frozen
class Named:
    """Checked by the function that the decoder's caller has for this name, and described by the schema that
    the schema's caller has: both depend on what is installed, or are another room's. Where there is none, the
    annotation counts."""

    name: str


class Model:
    """An object that is read.

    * `TAG` names the constant property that identifies its type, if it has one; the class attribute of that
      name holds the constant. `TAG_REQUIRED` says that it has to be there.
    * `FORBID` says that unknown properties are refused (else they are ignored), `REFUSED` names some that are
      refused all the same, and `REFUSED_WHY` says why.
    * `NULL_IS_ABSENT` says that a property that is null counts as one that is not there.
    * `CHOICE_ERROR` is the type of the error for a value that is not among fixed strings.
    * `NAME` is what the schema calls it, `SCHEMA` has more keywords for it: what the types cannot say.
    """

    __slots__ = ()
    TAG: ClassVar[str | None] = None
    TAG_REQUIRED: ClassVar[bool] = False
    FORBID: ClassVar[bool] = False
    REFUSED: ClassVar[tuple[str, ...]] = ()
    REFUSED_WHY: ClassVar[str] = EXTRA
    NULL_IS_ABSENT: ClassVar[bool] = False
    CHOICE_ERROR: ClassVar[str] = "literal_error"
    NAME: ClassVar[str]
    SCHEMA: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "NAME" not in cls.__dict__:
            cls.NAME = cls.__name__

    def judge(self) -> Iterable[Flaw]:
        """What is wrong with the properties together, each of which is right by itself."""
        return ()


class Variant(Model):
    """One member of a family, identified by the constant `kind`, which is the name of the class.

    A family is a direct subclass that declares `variants`; every subclass of it is registered there.
    `ELSEWHERE` names modules with rarely used members as rows (`KINDS`; see `rows.define`): they are imported
    for an unregistered kind, or when all members are needed.
    """

    __slots__ = ()
    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    FORBID: ClassVar[bool] = True
    kind: ClassVar[str]
    variants: ClassVar[dict[str, type[Any]]]
    ELSEWHERE: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "variants" not in cls.__dict__:
            cls.kind = cls.__name__
            # attrs makes each slotted class twice under one name; the second, final one stays.
            cls.variants[cls.__name__] = cls


@attrs.frozen
class ErrorDetail(Model):
    """One thing that is wrong: where (`loc`, property names and indexes from the root), what, and its type.

    The message never repeats the offending value, which may be a secret.
    """

    NAME: ClassVar[str] = "ValidationError"

    loc: tuple[str | int, ...]
    msg: str
    type: str


@attrs.frozen(kw_only=True)
class HTTPValidationError(Model):
    """The body of a 422 answer."""

    detail: tuple[ErrorDetail, ...]


class Invalid(ValueError):
    """A document is invalid; `errors` says where and how, and is bounded as `Errors.reported` is.

    Its text is made on demand, and bounded: names in a document may have megabytes.
    """

    def __init__(self, errors: Iterable[ErrorDetail]) -> None:
        self.errors: tuple[ErrorDetail, ...] = tuple(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "; ".join(f"{_place(each.loc)}: {each.msg}" for each in self.errors)


def _place(loc: Location) -> str:
    """A location in one line, its long names cut."""
    return ".".join(
        part if len(part) <= NAME_CHARACTERS else f"{part[:NAME_CHARACTERS]}..."
        for part in map(str, loc[:LOC_PARTS])
    )


Check = Callable[[Any, Location, "Errors"], Any]
"""Reads the value at a location. On an error it adds that to the Errors, and returns an arbitrary value."""


class Errors:
    """Collects the first errors of one document while it is read, and whether there are more.

    `named` are the checks that its descriptions leave to the caller (`Named`). Values without a check are
    kept as they are.
    """

    __slots__ = ("_found", "more", "named")

    def __init__(self, named: Mapping[str, Check] | None = None) -> None:
        self._found: list[ErrorDetail] = []
        self.more = 0
        """Number of unlisted errors. At the first one, the reader of a list or an object stops."""
        self.named: Mapping[str, Check] = named or {}

    def __len__(self) -> int:
        return len(self._found) + self.more

    def add(self, loc: Location, kind: str, message: str) -> None:
        """Note an error."""
        if len(self._found) < MAX_ERRORS:
            self._found.append(ErrorDetail(loc, message, kind))
        else:
            self.more += 1

    def note(self, errors: Iterable[ErrorDetail]) -> None:
        """Add errors that were found elsewhere."""
        for each in errors:
            self.add(tuple(each.loc), each.type, each.msg)

    def reported(self) -> tuple[ErrorDetail, ...]:
        """The errors as a client gets them."""
        if not self.more:
            return tuple(self._found)
        return (*self._found, ErrorDetail((), "There are more mistakes", TOO_MANY))

    def raise_if_any(self) -> None:
        """Raise Invalid unless none was noted."""
        if self._found:
            raise Invalid(self.reported())
