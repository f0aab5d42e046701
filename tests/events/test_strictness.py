"""What is not allowed is rejected, each error at its place."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from supervisor.events import Action, CriticResult, Event, Message, decode_event, decode_message
from supervisor.reading.decode import decode
from supervisor.reading.model import MAX_ERRORS, TOO_MANY, ErrorDetail, Invalid, Model
from supervisor.reading.shapes import (
    Choice,
    Family,
    Fixed,
    ListOf,
    MapOf,
    OneOf,
    Record,
    Scalar,
    Shape,
    constant_of,
    members_of,
    properties_of,
)
from tests.events.examples import ACTION, MESSAGE, TEXT


def doing(action: dict[str, Any]) -> dict[str, Any]:
    return {**ACTION, "action": action}


def errors_of(document: Any) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(Invalid) as caught:
        decode_event(document)
    return [(each.loc, each.type) for each in caught.value.errors]


def every_model() -> list[type[Model]]:
    found: dict[type[Model], None] = {}

    def walk(shape: Shape) -> None:
        match shape:
            case ListOf(item) | MapOf(item):
                walk(item)
            case Family(base):
                for member in members_of(base).values():
                    walk(Record(member))
            case OneOf(models):
                for model in models:
                    walk(Record(model))
            case Record(model) if model not in found:
                found[model] = None
                for each in properties_of(model):
                    walk(each.shape)

    walk(Family(Event))
    return list(found)


def least(shape: Shape) -> Any:
    """The smallest valid JSON of a shape, limits aside."""
    match shape:
        case Scalar(types):
            return {str: "abcd", int: 1, float: 0.5, bool: True}[types[0]]
        case Choice(values):
            return values[0]
        case ListOf():
            return []
        case Fixed(items):
            return [least(each) for each in items]
        case Record(model) | OneOf((model, *_)):
            return least_of(model)
        case Family(base):
            return least_of(next(iter(members_of(base).values())))
        case _:
            return {}


def least_of(model: type[Model]) -> dict[str, Any]:
    document = {
        each.name: "2026-01-01T00:00:00" if each.limit and each.limit.date_time else least(each.shape)
        for each in properties_of(model)
        if each.required
    }
    constant = constant_of(model)
    return document if constant is None else {**document, constant[0]: constant[1]}


@pytest.mark.parametrize("model", every_model(), ids=lambda model: model.__name__)
def test_every_property_of_every_type_is_checked(model: type[Model]) -> None:
    valid = least_of(model)
    decode(model, valid)

    def found(document: Any) -> list[tuple[tuple[str | int, ...], str]]:
        with pytest.raises(Invalid) as caught:
            decode(model, document)
        return [(each.loc, each.type) for each in caught.value.errors]

    for name in [each.name for each in properties_of(model) if each.required]:
        assert found({key: value for key, value in valid.items() if key != name}) == [((name,), "missing")]
    wrong = object()  # no JSON type at all, so wrong for every typed property
    for each in properties_of(model):
        if not isinstance(least(each.shape), dict) or isinstance(each.shape, (Record, OneOf, Family, MapOf)):
            assert [loc for loc, _ in found({**valid, each.name: wrong})] == [(each.name,)]
            if not each.nullable:
                assert [loc for loc, _ in found({**valid, each.name: None})] == [(each.name,)]
    if model.FORBID:
        assert found({**valid, "surplus": 1}) == [(("surplus",), "extra_forbidden")]
    else:
        assert decode(model, {**valid, "surplus": 1}) == decode(model, valid)
    assert found([valid]) == [((), "dict_type")]
    if "kind" in valid and model.TAG == "kind":
        assert found({**valid, "kind": "Other"}) == [(("kind",), "literal_error")]
        del valid["kind"]
        assert found(valid) == [(("kind",), "missing")]


def test_all_errors_of_a_document_are_collected_in_order() -> None:
    document = copy.deepcopy(doing({"kind": "BrowserClickAction", "index": -1, "new_tab": 0, "x": 1}))
    del document["tool_name"]
    document["thought"] = [TEXT, {"text": 1}, {"text": "", "y": 0}]
    document["z"] = None
    assert errors_of(document) == [
        (("thought", 1, "text"), "string_type"),
        (("thought", 2, "y"), "extra_forbidden"),
        (("action", "index"), "greater_than_equal"),
        (("action", "new_tab"), "bool_type"),
        (("action", "x"), "extra_forbidden"),
        (("tool_name",), "missing"),
        (("z",), "extra_forbidden"),
    ]


def test_no_more_errors_are_collected_than_memory_can_bear() -> None:
    document = {
        "kind": "TokenEvent",
        "source": "agent",
        "prompt_token_ids": ["x"] * 5000,
        "response_token_ids": [],
    }
    *listed, others = errors_of(document)
    assert len(listed) == MAX_ERRORS
    assert others == ((), TOO_MANY)


def test_errors_say_where_but_never_what_was_found() -> None:
    with pytest.raises(Invalid) as caught:
        decode_event({**MESSAGE, "llm_message": {"role": "user", "name": ["hunter2"]}, "token": "hunter2"})
    assert "hunter2" not in f"{caught.value!s}{caught.value.errors!r}"
    assert str(caught.value) == (
        "llm_message.name: Input should be a valid string; token: Extra inputs are not permitted"
    )
    assert caught.value.errors[0] == ErrorDetail(
        ("llm_message", "name"), "Input should be a valid string", "string_type"
    )


@pytest.mark.parametrize("document", [None, [], "PauseEvent", 1])
def test_what_is_no_object_is_rejected_at_the_root(document: Any) -> None:
    assert errors_of(document) == [((), "dict_type")]


def test_constructors_keep_the_limits_too() -> None:
    with pytest.raises(ValueError, match=r"CriticResult\.score"):
        CriticResult(score=1.5, message=None)
    with pytest.raises(ValueError, match=r"CriticResult\.score"):
        CriticResult(score=math.nan, message=None)
    with pytest.raises(ValueError, match=r"BrowserClickAction\.index"):
        members_of(Action)["BrowserClickAction"](index=-1)
    with pytest.raises(ValueError, match=r"BrowserCloseTabAction\.tab_id"):
        members_of(Action)["BrowserCloseTabAction"](tab_id="abcde")


def test_messages_of_clients() -> None:
    sent = {
        "content": [{"type": "text", "text": "hi"}, {"type": "image", "image_urls": ["data:,"], "x": 1}],
        "run": True,
    }
    message = decode_message(sent)
    assert message.role == "user"
    assert [each.type for each in message.content] == ["text", "image"]
    assert decode_message({"role": "assistant"}) == Message(role="assistant")
    with pytest.raises(Invalid):
        decode_message([])


def test_contents_without_a_type_are_told_apart_by_what_they_hold() -> None:
    message = decode_message({"content": [{"text": "hi"}, {"image_urls": []}]})
    assert [each.type for each in message.content] == ["text", "image"]
