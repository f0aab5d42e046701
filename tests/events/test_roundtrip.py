"""Whatever the types can hold survives encoding and decoding, and fits the schema, in both vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import jsonschema
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.events import (
    Event,
    Message,
    Vocabulary,
    completed,
    decode_event,
    dump_event,
    dumps,
    json_schema,
    with_nulls,
)
from supervisor.events.encode import encode
from supervisor.events.vocabulary import has_property, members_of
from supervisor.reading.decode import decode
from supervisor.reading.model import HTTPValidationError, Model
from supervisor.reading.rules import Limit
from supervisor.reading.shapes import (
    Choice,
    Family,
    Fixed,
    Free,
    ListOf,
    MapOf,
    OneOf,
    Property,
    Record,
    Scalar,
    Shape,
    properties_of,
)
from tests.support.thorough import everyday

INTEGERS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | INTEGERS | NUMBERS | NAMES
PAYLOADS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def values_of(shape: Shape, limit: Limit | None = None, *, core: bool = False) -> st.SearchStrategy[Any]:
    match shape:
        case Free():
            return PAYLOADS
        case Scalar(types):
            return st.one_of([scalars(each, limit or Limit()) for each in types])
        case Choice(values, enum):
            return st.sampled_from([enum(each) if enum else each for each in values])
        case ListOf(item):
            return st.lists(values_of(item, core=core), max_size=3).map(tuple)
        case Fixed(items):
            return st.tuples(*[values_of(each, core=core) for each in items])
        case MapOf(item):
            return st.dictionaries(NAMES, values_of(item, core=core), max_size=3)
        case Record(model):
            return instances_of(model, core=core)
        case OneOf(models):
            return st.one_of([instances_of(each, core=core) for each in models])
        case Family(base):
            vocabulary = Vocabulary.CORE if core else Vocabulary.EXTENDED
            return st.one_of(
                [instances_of(each, core=core) for each in members_of(base, vocabulary).values()]
            )


def scalars(of: type, limit: Limit) -> st.SearchStrategy[Any]:
    if limit.date_time:
        return st.datetimes().map(lambda moment: moment.isoformat())
    if of is bool:
        return st.booleans()
    if of is str:
        return st.text(min_size=limit.min_length or 0, max_size=limit.max_length or 12)
    low, high = limit.ge, limit.le
    if of is int:
        return st.integers(
            min_value=-(2**63) if low is None else int(low),
            max_value=2**63 - 1 if high is None else int(high),
        )
    return st.floats(min_value=low, max_value=high, allow_nan=False, allow_infinity=False)


def property_values(each: Property, *, core: bool) -> st.SearchStrategy[Any]:
    values = values_of(each.shape, each.limit, core=core)
    return st.none() | values if each.nullable else values


def instances_of(model: type[Model], *, core: bool = False) -> st.SearchStrategy[Any]:
    """Instances with all properties given; those that core has not are left at their defaults for core."""
    vocabulary = Vocabulary.CORE if core else Vocabulary.EXTENDED
    arguments = {
        each.attribute: property_values(each, core=core)
        for each in properties_of(model)
        if has_property(each, vocabulary)
    }
    return st.deferred(lambda: st.builds(model, **arguments))


def models_below(shape: Shape, seen: set[type[Model]]) -> Iterator[type[Model]]:
    match shape:
        case ListOf(item) | MapOf(item):
            yield from models_below(item, seen)
        case Record(model):
            if model not in seen:
                seen.add(model)
                yield model
                for each in properties_of(model):
                    yield from models_below(each.shape, seen)
        case OneOf(models):
            for model in models:
                yield from models_below(Record(model), seen)
        case Family(base):
            for model in members_of(base).values():
                yield from models_below(Record(model), seen)


SEEN: set[type[Model]] = set()
MODELS = [*models_below(Family(Event), SEEN), *models_below(Record(HTTPValidationError), SEEN)]
EVENTS = list(members_of(Event).values())
CORE_EVENTS = list(members_of(Event, Vocabulary.CORE).values())
SCHEMAS = {each: json_schema(each) for each in Vocabulary}
brief = settings(max_examples=everyday(8, 25), deadline=None, suppress_health_check=list(HealthCheck))


def by_name(model: type[Model]) -> str:
    return model.__name__


def validate(document: Any, name: str, vocabulary: Vocabulary = Vocabulary.EXTENDED) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS[vocabulary]}}
    jsonschema.Draft202012Validator(schema).validate(document)


def test_there_are_as_many_types_as_the_references_name() -> None:
    names = {each.__name__ for each in MODELS}
    assert len(EVENTS) == 20
    assert len(CORE_EVENTS) == 14
    assert sum(name.endswith("Action") for name in names) == 37
    assert sum(name.endswith("Observation") for name in names) == 24 + 1  # UserRejectObservation is an event
    assert sum(hasattr(each, "action_type") for each in MODELS) == 39


@pytest.mark.guarantee(name="every-event-can-be-read")
@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_round_trip(model: type[Model]) -> None:
    @brief
    @given(instances_of(model))
    def holds(instance: Model) -> None:
        document = orjson.loads(dumps(encode(instance)))
        assert decode(model, document) == instance
        validate(document, model.NAME)

    holds()


@pytest.mark.parametrize("model", EVENTS, ids=by_name)
def test_both_forms_of_an_event_decode_to_it(model: type[Event]) -> None:
    @brief
    @given(instances_of(model))
    def holds(event: Event) -> None:
        stored = orjson.loads(dump_event(event))
        full = with_nulls(stored)
        assert decode_event(stored) == event
        assert decode_event(full) == event
        validate(stored, "Event")
        validate(full, "Event")
        top = {each.name for each in properties_of(model)} | {"kind"}
        assert set(full) == top
        assert completed(dump_event(event)) == dumps(full)

    holds()


@pytest.mark.parametrize("model", CORE_EVENTS, ids=by_name)
def test_the_core_form_fits_the_core_schema(model: type[Event]) -> None:
    @brief
    @given(instances_of(model, core=True))
    def holds(event: Event) -> None:
        stored = orjson.loads(dump_event(event, Vocabulary.CORE))
        assert decode_event(stored) == event
        validate(stored, "Event", Vocabulary.CORE)
        full = with_nulls(stored, Vocabulary.CORE)
        validate(full, "Event", Vocabulary.CORE)
        assert completed(dump_event(event, Vocabulary.CORE), Vocabulary.CORE) == dumps(full)

    holds()


@brief
@given(instances_of(Message))
def test_a_frozen_type_does_not_change_under_its_reader(message: Message) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        message.role = "tool"  # type: ignore[misc]
