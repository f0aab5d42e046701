"""From the types to JSON, within a vocabulary.

Stored and streamed JSON omits typed properties that are null, unless they are required; untyped payloads are
passed on unchanged. Answers by id include all nulls: `with_nulls` adds them to the stored form, so that each
event is encoded only once. Encoders are compiled once per type and vocabulary.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from supervisor.events.payload import dumps
from supervisor.events.types import Event
from supervisor.events.vocabulary import Vocabulary, has_property, is_within, member_of
from supervisor.reading.model import Model, Variant
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
    Record,
    Scalar,
    Shape,
    constant_of,
    once_per_type,
    properties_of,
)

_Encode = Callable[[Any], Any]
_EncodeRecord = Callable[[Any], dict[str, Any]]


def encode(obj: Model, vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, Any]:
    """The JSON object of `obj`, null properties omitted unless required.

    Payloads are shared with `obj`, not copied. Raises ValueError where the vocabulary has no such kind.
    """
    return _record_encoder(type(obj), vocabulary)(obj)


def dump_event(event: Event, vocabulary: Vocabulary = Vocabulary.EXTENDED) -> bytes:
    """The JSON of an event as it is stored and as it is sent on sockets, without a newline in it.

    Raises ValueError where the vocabulary has no such kind, of the event or of the action, observation or
    tool in it.
    """
    return dumps(_record_encoder(type(event), vocabulary)(event))


def dump_stamped(event: Event, vocabulary: Vocabulary, timestamp: str, parent_id: str | None) -> bytes:
    """As `dump_event`, with another time and parent than the event's, without a copy of the event.

    `parent_id` is None where there is no parent, as in the core vocabulary.
    """
    encoded = _record_encoder(type(event), vocabulary)(event)
    encoded["timestamp"] = timestamp
    if parent_id is None:
        encoded.pop("parent_id", None)
    else:
        encoded["parent_id"] = parent_id
    return dumps(encoded)


def with_nulls(obj: Mapping[str, Any], vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, Any]:
    """A stored event with its null properties present, recursively: the form of answers by id.

    `obj` itself is left alone. A kind that is not known is returned as it is.
    """
    return _family_filler(Event, vocabulary)(obj)  # type: ignore[no-any-return]


def completed(stored: bytes, vocabulary: Vocabulary = Vocabulary.EXTENDED) -> bytes:
    """As `with_nulls`, from an event's stored bytes to bytes.

    Most events lack nulls only at their end: these are appended, without encoding the event again.
    """
    obj = orjson.loads(stored)
    plan = _plan(obj.get("kind"), vocabulary)
    if plan is None or not stored.endswith(b"}"):
        return dumps(with_nulls(obj, vocabulary))
    nulls, deeper = plan
    for name in deeper:
        if obj.get(name) is not None:
            return dumps(with_nulls(obj, vocabulary))
    missing = [null for name, null in nulls if name not in obj]
    return b"".join((stored[:-1], *missing, b"}")) if missing else stored


Plan = tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]

_plans: dict[tuple[str, Vocabulary], Plan] = {}
"""Cache for known kinds alone: other names are untrusted, and would make it grow without bound."""


def _plan(kind: Any, vocabulary: Vocabulary) -> Plan | None:
    if not isinstance(kind, str):
        return None
    found = _plans.get((kind, vocabulary))
    if found is None:
        member = member_of(Event, kind, vocabulary)
        if member is not None:
            found = _plans[kind, vocabulary] = _completion(member, vocabulary)
    return found


def _completion(model: type[Model], vocabulary: Vocabulary) -> Plan:
    """The properties that may be null, each with what is added where it is missing, and those in which nulls
    may be missing. An event has a property before them: its kind."""
    described = [each for each in properties_of(model) if has_property(each, vocabulary)]
    nulls = [(each.name, b"," + orjson.dumps(each.name) + b":null") for each in described if each.nullable]
    return tuple(nulls), tuple(each.name for each in described if _filler(each.shape, vocabulary))


@once_per_type
def _record_encoder(model: type[Model], vocabulary: Vocabulary) -> _EncodeRecord:
    if not is_within(model, vocabulary):
        return _refuse(model, vocabulary)
    known = [each for each in properties_of(model) if has_property(each, vocabulary)]
    plan = []
    for each in known:
        encoder, omit_null = _encoder(each.shape, vocabulary), each.nullable and not each.required
        plan.append((each.name, encoder, omit_null, encoder is None and not omit_null))
    read = _reader([each.attribute for each in known])
    constant = constant_of(model)

    def write(obj: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for (name, encoder, omit_null, plain), value in zip(plan, read(obj), strict=True):
            if plain:
                out[name] = value
            elif value is None:
                if not omit_null:
                    out[name] = None
            else:
                out[name] = value if encoder is None else encoder(value)
        if constant is not None:
            out[constant[0]] = constant[1]
        return out

    return write


def _reader(attributes: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads all of these attributes at once."""
    if len(attributes) > 1:
        return operator.attrgetter(*attributes)
    return lambda obj: tuple(getattr(obj, name) for name in attributes)


def _refuse(model: type[Model], vocabulary: Vocabulary) -> _EncodeRecord:
    def write(obj: Any) -> dict[str, Any]:
        raise ValueError(f"the {vocabulary} vocabulary has no {model.NAME}")

    return write


def _encoder(shape: Shape, vocabulary: Vocabulary) -> _Encode | None:
    """What turns a value of this shape into JSON; None where it is JSON already."""
    match shape:
        case Free() | Scalar() | Choice() | Fixed() | Kept() | Elsewhere():
            return None
        case Narrowed(inner):
            return _encoder(inner, vocabulary)
        case ListOf(item):
            return _over_list(_encoder(item, vocabulary))
        case MapOf(item):
            return _over_map(_encoder(item, vocabulary))
        case Record(model):
            return _record_encoder(model, vocabulary)
        case OneOf() | Family():
            return lambda value: _record_encoder(type(value), vocabulary)(value)


def _over_list(item: _Encode | None) -> _Encode | None:
    return None if item is None else lambda value: [item(each) for each in value]


def _over_map(item: _Encode | None) -> _Encode | None:
    return None if item is None else lambda value: {key: item(each) for key, each in value.items()}


@once_per_type
def _record_filler(model: type[Model], vocabulary: Vocabulary) -> _EncodeRecord:
    described = [each for each in properties_of(model) if has_property(each, vocabulary)]
    nullable = [each.name for each in described if each.nullable]
    fillers = [(each.name, filler) for each in described if (filler := _filler(each.shape, vocabulary))]

    def fill(obj: Mapping[str, Any]) -> dict[str, Any]:
        out = dict(obj)
        for name in nullable:
            if name not in out:
                out[name] = None
        for name, filler in fillers:
            value = out.get(name)
            if value is not None:
                out[name] = filler(value)
        return out

    return fill


def _filler(shape: Shape, vocabulary: Vocabulary) -> _Encode | None:
    """What adds the nulls to a JSON value of this shape; None where there are none to add."""
    match shape:
        case Free() | Scalar() | Choice() | Fixed() | Kept() | Elsewhere():
            return None
        case Narrowed(inner):
            return _filler(inner, vocabulary)
        case ListOf(item):
            return _over_list(_filler(item, vocabulary))
        case MapOf(item):
            return _over_map(_filler(item, vocabulary))
        case Record(model):
            return _record_filler(model, vocabulary)
        case OneOf(models):
            return _tagged_filler({constant_of(model): model for model in models}, vocabulary)
        case Family(base):
            return _family_filler(base, vocabulary)


def _tagged_filler(models: Mapping[tuple[str, str] | None, type[Model]], vocabulary: Vocabulary) -> _Encode:
    def fill(value: Any) -> Any:
        model = next((each for constant, each in models.items() if constant in value.items()), None)
        return value if model is None else _record_filler(model, vocabulary)(value)

    return fill


@once_per_type
def _family_filler(base: type[Variant], vocabulary: Vocabulary) -> _Encode:
    def fill(value: Any) -> Any:
        member = member_of(base, value.get("kind"), vocabulary)
        return value if member is None else _record_filler(member, vocabulary)(value)

    return fill
