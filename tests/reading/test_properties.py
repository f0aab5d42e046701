"""What holds of every description that there is, and of every input: shown by Hypothesis."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import jsonschema
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gateway.api.app  # noqa: F401 - imports every description
from gateway.api.requests.bodies import SecretCreateRequest
from gateway.api.requests.start_request import StartConversationRequest
from supervisor.agents.catalog import Described
from supervisor.events import Event, Message
from supervisor.reading.decode import decode
from supervisor.reading.model import Errors, Invalid, Model, Variant
from supervisor.reading.rules import Rule
from supervisor.reading.schema import Components
from supervisor.reading.shapes import (
    Choice,
    Elsewhere,
    Family,
    Fixed,
    Free,
    Kept,
    ListOf,
    MapOf,
    Narrowed,
    OneOf,
    Property,
    Record,
    Scalar,
    Shape,
    as_json,
    constant_of,
    members_of,
    properties_of,
)
from supervisor.settings.connections import ProviderConnectionUpdateRequest
from supervisor.settings.document import SettingsUpdateRequest
from tests.support.thorough import everyday

ROOMS = ("supervisor.", "gateway.")


def descriptions() -> Iterator[type[Model]]:
    """Every description of the program, but for the families' members, which come with their families."""
    left = [Model]
    seen = set()
    while left:
        for each in left.pop().__subclasses__():
            if each in seen:
                continue
            seen.add(each)
            left.append(each)
            # attrs makes each slotted class twice; only the second can be found in its module.
            public = getattr(sys.modules[each.__module__], each.__name__, None) is each
            described = attrs.has(each) if not issubclass(each, Variant) else "variants" in each.__dict__
            if public and described and each.__module__.startswith(ROOMS):
                yield each


OWN = sorted(
    (each for each in descriptions() if not each.__module__.startswith("supervisor.events")),
    key=lambda model: (model.__module__, model.__name__),
)
MODELS = [Event, Message, *OWN]
"""The types that events are made of have tests of their own."""

BRIEF = settings(
    max_examples=everyday(4, 25),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

MARK = "hunter2"
"""What no message may repeat."""

TEXTS = st.sampled_from(
    [
        "a", "b1", "A_1", "user", "/w", "20.1", "x=y z", " title ", "default",
        "2026-01-01T00:00:00", ">=3.12,<3.15", "c0ffee00-c0ff-4eee-8c0f-c0ffee00c0ff", MARK,
    ]
) | st.text(max_size=6)  # fmt: skip
ADDRESSES = st.sampled_from(["http://h", "https://h:1/p"])
NAMES = st.sampled_from(["a", "b1", "TOKEN"]) | st.text(max_size=3)
INTEGERS = st.integers(0, 200) | st.integers(-(2**53), 2**53)
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def keeps_to(rules: tuple[Rule, ...], value: Any) -> bool:
    errors = Errors()
    for rule in rules:
        if not errors:
            value = rule.read(value, (), errors)
    return not errors


def json_of(shape: Shape) -> st.SearchStrategy[Any]:
    """JSON that is right, or nearly: what is judged of several properties together may be wrong."""
    match shape:
        case Scalar(types):
            by_type = {str: TEXTS, int: INTEGERS, float: st.floats(-1e9, 1e9) | INTEGERS, bool: st.booleans()}
            return st.one_of([by_type[each] for each in types])
        case Choice(values):
            return st.sampled_from(values)
        case ListOf(item):
            return st.lists(st.deferred(lambda: json_of(item)), max_size=2)
        case Fixed(items):
            return st.tuples(*map(json_of, items)).map(list)
        case MapOf(item):
            return st.dictionaries(NAMES, st.deferred(lambda: json_of(item)), max_size=2)
        case Record(model):
            return st.deferred(lambda: json_of_model(model))
        case OneOf(models):
            return st.one_of([json_of(Record(each)) for each in models])
        case Family(base):
            return st.one_of([json_of(Record(each)) for each in members_of(base).values()])
        case Narrowed(inner, rules):
            return json_of(inner).filter(lambda value: keeps_to(rules, value))
        case Kept(inner) | Elsewhere(_, inner):
            return json_of(inner)
        case Free():
            return JUNK
    raise AssertionError(shape)


def json_of_property(each: Property) -> st.SearchStrategy[Any]:
    values = json_of(each.shape)
    if each.name == "base_url":
        values = ADDRESSES | values
    if each.limit is not None:
        limit = each.limit
        values = values.filter(lambda value: limit.broken_by(value) is None)
    return st.none() | values if each.nullable else values


def json_of_model(model: type[Model]) -> st.SearchStrategy[dict[str, Any]]:
    if isinstance(getattr(model, "variants", None), dict) and "variants" in model.__dict__:
        return json_of(Family(model))
    properties = properties_of(model)
    required = {each.name: json_of_property(each) for each in properties if each.required}
    optional = {each.name: json_of_property(each) for each in properties if not each.required}
    constant = constant_of(model)
    if constant is not None:
        (required if model.TAG_REQUIRED else optional)[constant[0]] = st.just(constant[1])
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def spoilt(draw: st.DrawFn, model: type[Model]) -> Any:
    """JSON that is nearly right, with something replaced, removed or added at any depth."""
    document = copy.deepcopy(draw(json_of_model(model)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(containers(document))
        if not places:
            return draw(JUNK)
        place = draw(st.sampled_from(places))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace" if keys:
                place[draw(st.sampled_from(keys))] = draw(JUNK)
            case "remove" if keys:
                del place[draw(st.sampled_from(keys))]
            case _ if isinstance(place, dict):
                place[draw(NAMES)] = draw(JUNK)
            case _:
                place.append(draw(JUNK))
    return draw(st.just(document) | JUNK) if draw(st.integers(0, 9)) == 0 else document


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from containers(each)
    elif isinstance(value, list):
        yield value
        for each in value:
            yield from containers(each)


def leads_somewhere(document: Any, loc: tuple[str | int, ...], *, missing: bool) -> bool:
    """Whether a place is in the document; the last part of a missing one is not, but what it would be in."""
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if isinstance(document, Mapping) and isinstance(part, str):
            if part not in document:
                return missing and last
            document = document[part]
        elif isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return False
    return True


def refusal(model: type[Model], document: Any) -> Invalid | None:
    try:
        decode(model, document)
    except Invalid as refused:
        return refused
    return None


def name(model: type[Model]) -> str:
    return f"{model.__module__.rpartition('.')[2]}.{model.__name__}"


def test_the_descriptions_are_found() -> None:
    names = {model.__name__ for model in MODELS}
    assert {
        "Event", "StartConversationRequest", "AgentSettings", "AgentProfile", "MCPServer", "Descriptor",
        "StaticSource", "SettingsUpdateRequest", "ConfirmationPolicy", "EventPageQuery",
    } <= names  # fmt: skip


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("model", MODELS, ids=name)
def test_every_input_is_read_or_has_errors_that_lead_somewhere(model: type[Model]) -> None:
    @BRIEF
    @given(spoilt(model) | JUNK)
    def holds(document: Any) -> None:
        refused = refusal(model, document)
        assert refused is None or refused.errors
        for error in refused.errors if refused else ():
            # A tag that is missing or wrong is the same mistake.
            missing = error.type in ("missing", "union_tag_invalid")
            assert leads_somewhere(document, error.loc, missing=missing), error
            assert error.msg
            orjson.dumps([*error.loc, error.msg, error.type])

    holds()


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("model", [model for model in MODELS if not issubclass(model, Described)], ids=name)
def test_no_message_repeats_a_value(model: type[Model]) -> None:
    @BRIEF
    @given(spoilt(model))
    def holds(document: Any) -> None:
        refused = refusal(model, document)
        assert refused is None or not any(MARK in error.msg for error in refused.errors)

    holds()


@pytest.mark.parametrize("model", [model for model in OWN if not issubclass(model, Described)], ids=name)
def test_what_is_read_can_be_written_and_is_then_read_as_the_same(model: type[Model]) -> None:
    @BRIEF
    @given(json_of_model(model))
    def holds(document: Any) -> None:
        try:
            found = decode(model, document)
        except Invalid:
            return
        written = orjson.loads(orjson.dumps(as_json(found)))
        assert decode(model, written) == found

    holds()


JUDGED_LATER = {
    ProviderConnectionUpdateRequest,
    SecretCreateRequest,
    SettingsUpdateRequest,
    StartConversationRequest,
}
"""The store refuses some values, an empty change is another error, and the agent of a start request is read
after the rest: the schema says so all the same."""


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("model", [model for model in MODELS if model not in JUDGED_LATER], ids=name)
def test_what_is_read_fits_the_schema(model: type[Model]) -> None:
    components = Components().add(model)
    reference = {"$ref": f"#/components/schemas/{model.NAME}", "components": {"schemas": components}}
    validator = jsonschema.Draft202012Validator(reference)

    @BRIEF
    @given(json_of_model(model) | spoilt(model))
    def holds(document: Any) -> None:
        if refusal(model, document) is not None:
            return
        fault = jsonschema.exceptions.best_match(validator.iter_errors(document))
        assert fault is None, (document, fault)

    holds()
