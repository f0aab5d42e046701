"""What a description says is what is read, what is refused and what the schema says."""

from __future__ import annotations

import enum
import re
import tracemalloc
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import attrs
import jsonschema
import pytest

from supervisor.reading.decode import among, attempt, decode
from supervisor.reading.model import (
    INTEGRAL,
    MAX_ERRORS,
    NAME_CHARACTERS,
    NEVER_NULL,
    TOO_MANY,
    ErrorDetail,
    Errors,
    Flaw,
    Invalid,
    Like,
    Model,
    Named,
    Variant,
    Written,
    described,
    wire_name,
)
from supervisor.reading.rules import FILLED, NO_NUL, Form, Items, Limit, Names, Properties, Size
from supervisor.reading.schema import Components
from supervisor.reading.shapes import as_json


def _even(text: str) -> str:
    if len(text) % 2:
        raise ValueError("it should have an even number of characters")
    return text.lower()


@attrs.frozen(kw_only=True)
class Inner(Model):
    """Has a constant, and refuses what it does not know."""

    TAG: ClassVar[str | None] = "sort"
    sort: ClassVar[str] = "inner"
    FORBID: ClassVar[bool] = True

    needed: Annotated[str, FILLED]


@attrs.frozen(kw_only=True)
class Other(Model):
    """Another, told by what it requires."""

    TAG: ClassVar[str | None] = "sort"
    sort: ClassVar[str] = "other"

    url: str


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


class Animal(Variant):
    """A family."""

    __slots__ = ()
    NULL_IS_ABSENT: ClassVar[bool] = True
    FORBID: ClassVar[bool] = False
    variants: ClassVar[dict[str, type[Any]]] = {}


@attrs.frozen(kw_only=True)
class Cat(Animal):
    """One."""

    lives: int = 9


@attrs.frozen(kw_only=True)
class Dog(Animal):
    """Another."""


@attrs.frozen(kw_only=True)
class Everything(Model):
    """One property for each thing that a description can say."""

    CHOICE_ERROR: ClassVar[str] = "enum"
    REFUSED: ClassVar[tuple[str, ...]] = ("llm",)
    NULL_IS_ABSENT: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, Any]] = {"description": "All of it"}

    text: Annotated[str, NO_NUL] = "default"
    switch: bool = attrs.field(default=True, metadata=NEVER_NULL)
    word: Literal["a", "b", "c"] = "a"
    whole: Annotated[int, INTEGRAL, Limit(ge=1, le=100)] = 1
    ratio: Annotated[float, Limit(gt=0)] = 1.0
    even: Annotated[str, Form(_even)] | None = None
    version: Annotated[
        tuple[int, ...], Written(str), Form(lambda text: tuple(map(int, text.split("."))))
    ] = ()
    parts: Annotated[tuple[Inner, ...], Items(max_length=2)] = ()
    named: Annotated[
        Mapping[str, str], Properties(max_length=2), Names(re.compile("[a-z]+"), "small letters alone")
    ] = attrs.field(factory=dict)
    kept: Annotated[Mapping[str, Any], Like(Inner | Other), Size(200)] | None = None
    elsewhere: Annotated[str, Named("place")] = "here"
    either: Inner | Other | None = None
    pet: Animal | None = None
    camel_case: str = attrs.field(default="", metadata={**wire_name("camelCase"), **described("Humps")})

    def judge(self) -> Iterable[Flaw]:
        """Not both."""
        if self.word == "c" and self.whole == 7:
            yield ("whole",), "value_error", "not with this word"


def errors_of(obj: Any, named: dict[str, Any] | None = None) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(Invalid) as caught:
        decode(Everything, obj, ("body",), named)
    assert all(each.loc[:1] == ("body",) for each in caught.value.errors)
    return [(each.loc[1:], each.type) for each in caught.value.errors]


def read(**given: Any) -> Everything:
    return decode(Everything, given)


def test_what_is_right_is_read_into_the_types() -> None:
    found = read(
        whole=5.0,
        even="AbCd",
        version="22.19",
        parts=[{"needed": "x"}, {"sort": "inner", "needed": "y"}],
        named={"a": "b"},
        either={"url": "u"},
        pet={"kind": "Cat", "whatever": 1},
        camelCase="humps",
    )
    assert (found.whole, type(found.whole)) == (5, int)
    assert found.even == "abcd"
    assert found.version == (22, 19)
    assert found.parts == (Inner(needed="x"), Inner(needed="y"))
    assert found.either == Other(url="u")
    assert found.pet == Cat()
    assert found.camel_case == "humps"


def test_null_is_absent_where_a_description_says_so() -> None:
    nothing = dict.fromkeys(("text", "word", "whole", "ratio", "even", "parts", "named", "either", "pet"))
    assert decode(Everything, nothing) == Everything()
    assert errors_of({"switch": None}) == [(("switch",), "bool_type")]
    assert errors_of({"pet": {"kind": None}}) == [(("pet", "kind"), "missing")]


def test_what_is_like_something_is_kept_as_it_came() -> None:
    given = {"url": "u", "more": [1]}
    assert read(kept=given).kept == given
    assert errors_of({"kept": {"sort": "inner"}}) == [(("kept", "needed"), "missing")]
    assert errors_of({"kept": {"url": "u", "more": "x" * 200}}) == [(("kept",), "too_long")]


def test_what_is_named_is_checked_by_the_caller() -> None:
    places = {"place": among(["north", "south"])}
    assert decode(Everything, {"elsewhere": "north"}, (), places).elsewhere == "north"
    assert errors_of({"elsewhere": "up"}, places) == [(("elsewhere",), "enum")]
    assert read(elsewhere="up").elsewhere == "up"
    assert errors_of({"elsewhere": 1}) == [(("elsewhere",), "string_type")]


@pytest.mark.parametrize(
    ("given", "loc", "kind"),
    [
        ({"text": "a\0b"}, ("text",), "value_error"),
        ({"text": 1}, ("text",), "string_type"),
        ({"switch": 1}, ("switch",), "bool_type"),
        ({"word": "d"}, ("word",), "enum"),
        ({"word": ["a"]}, ("word",), "enum"),
        ({"whole": 5.5}, ("whole",), "int_type"),
        ({"whole": True}, ("whole",), "int_type"),
        ({"whole": 0}, ("whole",), "greater_than_equal"),
        ({"whole": 1e300}, ("whole",), "less_than_equal"),
        ({"ratio": 0}, ("ratio",), "greater_than"),
        ({"ratio": float("nan")}, ("ratio",), "finite_number"),
        ({"even": "abc"}, ("even",), "value_error"),
        ({"parts": {}}, ("parts",), "list_type"),
        ({"parts": [{"needed": "a"}] * 3}, ("parts",), "too_long"),
        ({"parts": [{"needed": "a"}, {"needed": ""}]}, ("parts", 1, "needed"), "string_too_short"),
        ({"parts": [{"needed": "a", "x": 1}]}, ("parts", 0, "x"), "extra_forbidden"),
        ({"parts": [{"needed": "a", "sort": "other"}]}, ("parts", 0, "sort"), "literal_error"),
        ({"named": {"A": "b"}}, ("named", "A"), "value_error"),
        ({"named": {"a": 1}}, ("named", "a"), "string_type"),
        ({"named": dict.fromkeys("abc", "x")}, ("named",), "too_long"),
        ({"either": {"sort": "neither"}}, ("either", "sort"), "union_tag_invalid"),
        ({"either": []}, ("either",), "dict_type"),
        ({"pet": {}}, ("pet", "kind"), "missing"),
        ({"pet": {"kind": "Cow"}}, ("pet", "kind"), "union_tag_invalid"),
        ({"pet": {"kind": "Cat", "lives": "9"}}, ("pet", "lives"), "int_type"),
        ({"llm": {}}, ("llm",), "extra_forbidden"),
        ({"word": "c", "whole": 7}, ("whole",), "value_error"),
    ],
)
def test_what_is_wrong_has_a_place_and_a_type(given: Any, loc: tuple[str | int, ...], kind: str) -> None:
    assert errors_of(given) == [(loc, kind)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"word": "x"}, "Input should be 'a', 'b' or 'c'"),
        ({"pet": {"kind": "Cow"}}, "Input should be 'Cat' or 'Dog'"),
        ({"parts": [{"needed": ""}]}, "String should have at least 1 character"),
        ({"parts": [{"needed": "a"}] * 3}, "List should have at most 2 items, not 3"),
        ({"named": dict.fromkeys("abc", "x")}, "Dictionary should have at most 2 items, not 3"),
        ({"named": {"A": "b"}}, "Value error, small letters alone"),
        ({"even": "abc"}, "Value error, it should have an even number of characters"),
        ({"ratio": 0}, "Input should be greater than 0"),
        ({"whole": 101}, "Input should be less than or equal to 100"),
    ],
)
def test_messages_are_those_that_clients_know(given: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        decode(Everything, given)
    assert [each.msg for each in caught.value.errors] == [message]


def test_every_error_is_told_at_once() -> None:
    assert errors_of({"text": 1, "parts": [{}, 5], "llm": 1}) == [
        (("text",), "string_type"),
        (("parts", 0, "needed"), "missing"),
        (("parts", 1), "dict_type"),
        (("llm",), "extra_forbidden"),
    ]


def test_a_part_can_be_read_among_other_checks() -> None:
    errors = Errors()
    errors.note([ErrorDetail(("elsewhere",), "no", "value_error")])
    assert attempt(Inner, {}, ("body", "inner"), errors) is None
    assert [each.loc for each in errors.reported()] == [("elsewhere",), ("body", "inner", "needed")]


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_errors_stop_the_reading_and_take_no_memory() -> None:
    many = 200_000
    tracemalloc.start()
    try:
        with pytest.raises(Invalid) as caught:
            decode(tuple[Inner, ...], [{} for _ in range(many)])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    *listed, others = caught.value.errors
    assert len(listed) == MAX_ERRORS
    assert others == ErrorDetail((), "There are more mistakes", TOO_MANY)
    # The input, and nothing for what comes behind the last mistake that is told.
    assert most < 40_000_000


def test_the_text_of_an_error_is_small_however_long_a_name_is() -> None:
    long = "n" * 1_000_000
    with pytest.raises(Invalid) as caught:
        decode(
            Everything, {"kept": {"url": "u"}, "parts": [{"needed": "x", long: each} for each in range(2)]}
        )
    assert len(caught.value.errors) == 2
    assert len(str(caught.value)) < 1000
    assert "parts.0.nnn" in str(caught.value)


SCHEMAS = Components({"place": {"enum": ["north", "south"]}}).add(Everything)


def fits(document: Any) -> bool:
    schema = {"$ref": "#/components/schemas/Everything", "components": {"schemas": SCHEMAS}}
    return jsonschema.Draft202012Validator(schema).is_valid(document)


def test_the_schema_says_what_the_description_says() -> None:
    found = SCHEMAS["Everything"]
    assert found["description"] == "All of it"
    assert found["properties"]["llm"] == {"not": {}}
    assert found["properties"]["switch"] == {"type": "boolean", "default": True}
    assert found["properties"]["word"]["anyOf"][1] == {"type": "null"}
    assert found["properties"]["elsewhere"]["anyOf"][0] == {"enum": ["north", "south"]}
    assert found["properties"]["camelCase"]["description"] == "Humps"
    assert SCHEMAS["Inner"]["additionalProperties"] is False
    assert "required" not in found


@pytest.mark.parametrize(
    "given",
    [
        {"text": "a\0b"},
        {"whole": 0},
        {"ratio": 0},
        {"parts": [{"needed": ""}]},
        {"parts": [{"needed": "a"}] * 3},
        {"named": {"A": "b"}},
        {"named": dict.fromkeys("abc", "x")},
        {"kept": {"sort": "inner"}},
        {"pet": {"kind": "Cow"}},
        {"llm": 1},
        {"switch": None},
    ],
)
def test_the_schema_refuses_what_is_refused(given: Any) -> None:
    assert errors_of(given)
    assert not fits(given)


def test_the_schema_takes_what_is_taken() -> None:
    given = {"whole": 5.0, "kept": {"url": "u", "x": 1}, "pet": {"kind": "Dog"}, "text": None, "unknown": 1}
    read(**given)
    assert fits(given)


def test_json_has_every_property_and_the_constants() -> None:
    assert as_json(Inner(needed="x")) == {"sort": "inner", "needed": "x"}
    written = as_json(Everything(parts=(Inner(needed="x"),)))
    assert written["parts"] == [{"sort": "inner", "needed": "x"}]
    assert written["even"] is None
    assert written["camelCase"] == ""


def test_a_description_that_nobody_can_read_is_a_mistake_of_ours() -> None:
    @attrs.frozen
    class Wrong(Model):
        value: bytes

    with pytest.raises(TypeError, match="no shape"):
        decode(Wrong, {})


class Colour(enum.StrEnum):
    """A choice with a name."""

    RED = "red"
    BLUE = "blue"


@attrs.frozen(kw_only=True)
class Exact(Model):
    """What the other descriptions leave out."""

    NAME: ClassVar[str] = "ExactlyThis"

    pair: tuple[int, str] | None = None
    colour: Colour = Colour.RED
    at: Annotated[str, Limit(date_time=True)] | None = None
    few: Annotated[str, Limit(min_length=2, max_length=3)] | None = None
    items: Annotated[tuple[int, ...], Items(min_length=2)] | None = None
    code: Annotated[str, Limit(pattern=re.compile("[a-z]+"))] | None = None


def test_descriptions_are_read_to_the_letter() -> None:
    given = {"pair": [1, "a"], "colour": "blue", "at": "2026-11-22T10:00:00Z", "few": "abc", "items": [1, 2]}
    assert decode(Exact, {**given, "code": "az"}) == Exact(
        pair=(1, "a"), colour=Colour.BLUE, at="2026-11-22T10:00:00Z", few="abc", items=(1, 2), code="az"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"pair": {}}, (("pair",), "Input should be a valid tuple", "tuple_type")),
        ({"pair": [1]}, (("pair",), "Input should have 2 items", "too_short")),
        ({"pair": [1, "a", 2]}, (("pair",), "Input should have 2 items", "too_long")),
        ({"colour": "green"}, (("colour",), "Input should be 'red' or 'blue'", "enum")),
        (
            {"at": "noon"},
            (("at",), "Input should be an ISO 8601 date and time", "datetime_parsing"),
        ),
        ({"few": "a"}, (("few",), "String should have at least 2 characters", "string_too_short")),
        (
            {"few": "abcd"},
            (("few",), "String should have at most 3 characters", "string_too_long"),
        ),
        ({"items": [1]}, (("items",), "List should have at least 2 items", "too_short")),
        ({"code": "A"}, (("code",), "String should match pattern '^[a-z]+$'", "string_pattern_mismatch")),
    ],
)
def test_each_error_has_its_place_its_words_and_its_type(given: Any, told: Any) -> None:
    with pytest.raises(Invalid) as caught:
        decode(Exact, given)
    assert caught.value.errors == (ErrorDetail(*told),)


def test_each_item_of_a_tuple_has_a_place() -> None:
    with pytest.raises(Invalid) as caught:
        decode(Exact, {"pair": ["a", 1]})
    assert [(each.loc, each.type) for each in caught.value.errors] == [
        (("pair", 0), "int_type"),
        (("pair", 1), "string_type"),
    ]


def test_the_text_of_an_error_cuts_names_that_are_too_long() -> None:
    exact, longer = "n" * NAME_CHARACTERS, "m" * (NAME_CHARACTERS + 1)
    told = str(Invalid([ErrorDetail((exact, 3, longer), "no", "x"), ErrorDetail(("a",), "nor this", "x")]))
    assert told == f"{exact}.3.{'m' * NAME_CHARACTERS}...: no; a: nor this"


def test_the_schema_names_what_has_a_name() -> None:
    found = Components({}).add(Exact)
    assert found["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    properties = found["ExactlyThis"]["properties"]
    assert {"type": "string", "format": "date-time"} in properties["at"]["anyOf"]
    assert {"type": "string", "minLength": 2, "maxLength": 3} in properties["few"]["anyOf"]
