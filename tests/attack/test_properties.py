"""What holds of every input, shown by Hypothesis: it finds small ones where the byte mutator finds many."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.api.requests.timestamps import parse_timestamp
from supervisor.acp import jsonrpc, parse_update
from supervisor.acp.framing import FrameSplitter, Oversize
from supervisor.credentials.common import too_common
from supervisor.credentials.masking import HIDDEN, Masker
from supervisor.events import decode_event, decode_message, dump_event
from supervisor.reading.model import Invalid
from supervisor.settings.document import apply_change, first_document, from_stored, to_stored
from supervisor.settings.errors import SettingsEmpty, SettingsError
from tests.attack import seeds
from tests.attack.pure_targets import RULES
from tests.support.thorough import everyday

SAME_EVERY_TIME = settings(derandomize=True, database=None, max_examples=everyday(60, 200), deadline=2000)


def words_of(values: list[Any]) -> st.SearchStrategy[str]:
    """The property names and short strings of some right inputs: what readers look for."""
    found: set[str] = set()

    def note(value: Any) -> None:
        if isinstance(value, str) and len(value) < 40:
            found.add(value)
        elif isinstance(value, dict):
            for key, each in value.items():
                note(key)
                note(each)
        elif isinstance(value, list):
            for each in value:
                note(each)

    for value in values:
        note(value)
    return st.sampled_from(sorted(found))


def json_of(values: list[Any]) -> st.SearchStrategy[Any]:
    """Any JSON, made of the words of some right inputs."""
    words = words_of(values)
    leaf = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words | st.text(max_size=5)
    )
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=6),
        max_leaves=20,
    )


@SAME_EVERY_TIME
@given(st.lists(st.binary(max_size=40)), st.integers(1, 50), st.sampled_from([b"", b"\n", b"\r\n"]))
def test_frames_do_not_depend_on_the_pieces(pieces: list[bytes], cap: int, end: bytes) -> None:
    whole, splitter = FrameSplitter(cap), FrameSplitter(cap)
    data = end.join(pieces)
    expected = [*whole.feed(data), *whole.finish()]
    found: list[bytes | Oversize] = []
    for number, piece in enumerate(pieces):
        found += splitter.feed((end if number else b"") + piece)
    found += splitter.finish()
    bare = [
        [f.strip(b" \t\r") if isinstance(f, bytes) else f for f in frames] for frames in (found, expected)
    ]
    assert bare[0] == bare[1]


@SAME_EVERY_TIME
@given(st.binary(max_size=200) | json_of(seeds.MESSAGES).map(lambda value: json.dumps(value).encode()))
def test_every_frame_is_some_message_that_can_be_written(frame: bytes) -> None:
    message = jsonrpc.parse(frame)
    if isinstance(message, jsonrpc.Request | jsonrpc.Notification):
        orjson.dumps([message.method, message.params])
    elif isinstance(message, jsonrpc.Response):
        orjson.dumps([message.id, message.result])


@pytest.mark.guarantee(name="nothing-that-is-sent-breaks-it")
@SAME_EVERY_TIME
@given(st.fixed_dictionaries({"sessionId": json_of(seeds.UPDATES), "update": json_of(seeds.UPDATES)}))
def test_every_update_is_read(params: Any) -> None:
    session, update = parse_update(params)
    assert isinstance(session, str)
    assert update is not None


KINDS = st.sampled_from(sorted({event["kind"] for event in seeds.EVENTS}))


@SAME_EVERY_TIME
@given(st.data())
def test_an_event_is_refused_or_written_and_read_again(data: st.DataObject) -> None:
    event = dict(data.draw(st.sampled_from(seeds.EVENTS)))
    for key in data.draw(st.lists(st.sampled_from(sorted(event)), max_size=3)):
        event[key] = data.draw(json_of(seeds.EVENTS))
    with contextlib.suppress(Invalid):
        decode_message(event)
    try:
        decoded = decode_event(event)
    except Invalid:
        return
    body = dump_event(decoded)
    assert dump_event(decode_event(orjson.loads(body))) == body


@SAME_EVERY_TIME
@given(st.lists(json_of(seeds.SETTINGS) | st.sampled_from(seeds.SETTINGS), max_size=5))
def test_settings_after_any_changes_can_be_stored(changes: list[Any]) -> None:
    document = first_document(RULES.presets)
    for change in changes:
        with contextlib.suppress(SettingsError, SettingsEmpty):
            document = apply_change(document, change, RULES)
    stored = orjson.loads(orjson.dumps(to_stored(document, RULES.presets)))
    assert from_stored(stored, RULES.presets) == document


@SAME_EVERY_TIME
@given(st.text(max_size=40))
def test_a_time_is_a_time_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_timestamp(text).endswith("Z")


@SAME_EVERY_TIME
@given(st.text(min_size=8, max_size=30), st.lists(st.text(max_size=12)), st.data())
def test_a_secret_does_not_pass_in_pieces(secret: str, around: list[str], data: st.DataObject) -> None:
    assume(too_common(secret) is None)
    masker = Masker([secret])
    said = secret.join(["", *around, ""])
    stream = masker.stream()
    shown = []
    while said:
        size = data.draw(st.integers(1, 9))
        shown.append(stream.feed(said[:size]))
        said = said[size:]
    shown.append(stream.flush())
    # What is left may make a secret only together with what stands for one.
    assert all(secret not in each for each in "".join(shown).split(HIDDEN))
