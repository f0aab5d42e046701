from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.acp.errors import RpcError
from supervisor.acp.jsonrpc import (
    MAX_REPAIR_BYTES,
    Invalid,
    NonProtocolOutput,
    Notification,
    Refused,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    parse,
)
from supervisor.reading.weight import MAX_DEPTH, MAX_NODES


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}', Request(1, "m", {"a": 1})),
        (b'{"id":"x","method":"m"}', Request("x", "m", None)),
        (b'{"id":null,"method":"m"}', Request(None, "m", None)),
        (b'{"id":1.5,"method":"m"}', Request(1.5, "m", None)),
        (b'{"method":"m","params":[1]}', Notification("m", [1])),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', Response(1, None, None)),
        (b'{"id":1,"result":{"a":2},"error":null}', Response(1, {"a": 2}, None)),
        (b'{"jsonrpc":"2.0","id":4}', Response(4, None, None)),
        (b'[{"id":1,"method":"m"}]', Invalid(None, "ACP has no batches")),
        (b'{"id":[1],"method":"m"}', Invalid(None, "the id is neither a string nor a number")),
        (b'{"id":true,"method":"m"}', Invalid(None, "the id is neither a string nor a number")),
        (b'{"id":5,"method":7}', Invalid(5, "the method is not a string")),
        (b"", NonProtocolOutput(b"")),
        (
            b"This program is outdated.",
            NonProtocolOutput(b"This program is outdated."),
        ),
        (b"{", NonProtocolOutput(b"{")),
        (b'  "jsonrpc": "2.0",', NonProtocolOutput(b'  "jsonrpc": "2.0",')),
        (b"42", NonProtocolOutput(b"42")),
        (b'{"level":"info","msg":"hi"}', NonProtocolOutput(b'{"level":"info","msg":"hi"}')),
        (b'{"id":3,"msg":"a log line"}', NonProtocolOutput(b'{"id":3,"msg":"a log line"}')),
        (b"[INFO] starting", NonProtocolOutput(b"[INFO] starting")),
    ],
)
def test_what_a_frame_says(frame: bytes, message: object) -> None:
    assert parse(frame) == message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": -32000, "message": "no", "data": {"a": 1}}, (-32000, "no", {"a": 1})),
        ({"message": "no code"}, (-32603, "no code", None)),
        ({"code": "x", "message": 5}, (-32603, "", None)),
        ("just words", (-32603, "just words", "just words")),
        (7, (-32603, "malformed error", 7)),
    ],
)
def test_errors_are_read_liberally(error: Any, expected: tuple[int, str, Any]) -> None:
    message = parse(orjson.dumps({"id": 1, "error": error}))
    assert isinstance(message, Response)
    assert message.error is not None
    assert (message.error.code, message.error.message, message.error.data) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"a\ude00b", "a\ufffdb"),
        (rb"\ud83d\ude00", "😀"),
        (rb"\ud83d\ud83d\ude00", "\ufffd😀"),
        (rb"\\ud83d", r"\ud83d"),
        (rb"\\\ud83d", "\\\ufffd"),
        (b"caf\xe9", "caf\ufffd"),
        (b"\xf0\x9f", "\ufffd"),
        (b"tab\there", "tab\there"),
    ],
)
def test_damaged_text_is_repaired(text: bytes, expected: str) -> None:
    message = parse(b'{"method":"m","params":{"t":"' + text + b'"}}')
    assert message == Notification("m", {"t": expected})


def test_numbers_that_json_does_not_know() -> None:
    frame = b'{"method":"m","params":[NaN,-Infinity,' + b"9" * 30 + b",12]}"
    message = parse(frame)
    assert isinstance(message, Notification)
    assert message.params == [None, None, float("9" * 30), 12]
    orjson.dumps(message.params)


def test_too_deep_to_be_recorded() -> None:
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    assert isinstance(parse(b'{"method":"m","params":' + nested(MAX_DEPTH - 2) + b"}"), Notification)
    refused = parse(b'{"id":1,"method":"m","params":' + nested(MAX_DEPTH + 1) + b"}")
    assert refused == Refused(f"nested deeper than {MAX_DEPTH} levels")


def test_what_costs_too_much_is_not_parsed() -> None:
    values = b'{"method":"m","params":[' + b"[]," * MAX_NODES + b"1]}"
    assert parse(values) == Refused(f"more than {MAX_NODES} values")
    unmended = b'{"method":"m","params":"' + b"\\ud800" * (MAX_REPAIR_BYTES // 6) + b'"}'
    assert parse(unmended) == Refused("not valid JSON")
    # What is no object is no message, however much of it there is.
    assert isinstance(parse(b"[" * MAX_NODES), NonProtocolOutput)


def test_wide_is_not_deep() -> None:
    wide = b'{"method":"m","params":[' + b",".join([b"[]"] * 5000) + b"]}"
    assert isinstance(parse(wide), Notification)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
members = st.sampled_from(["id", "method", "params", "result", "error", "jsonrpc", "x"])


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data: bytes) -> None:
    parse(data)
    parse(b'{"method":"m","params":"' + data + b'"}')


@given(st.dictionaries(members, json_values, max_size=6) | st.lists(json_values, max_size=3))
def test_random_json_never_raises_and_can_be_written_again(value: Any) -> None:
    message = parse(json.dumps(value).encode("utf-8", "surrogatepass"))
    if isinstance(message, Request | Notification):
        orjson.dumps(message.params)
    if isinstance(message, Request):
        encode_result(message.id, message.params)


@given(json_values)
def test_what_is_written_is_one_line_of_strict_json(value: Any) -> None:
    clean = orjson.loads(orjson.dumps(value)) if _writable(value) else None
    for line in (
        encode_request(1, "m", clean),
        encode_notification("m", clean),
        encode_result("id\n", clean),
        encode_error(None, RpcError(-1, "two\nlines", clean)),
    ):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert b"\r" not in line
        assert json.loads(line)["jsonrpc"] == "2.0"
    request = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": clean}
    assert json.loads(encode_request(1, "m", clean)) == request
    del request["id"]
    assert json.loads(encode_notification("m", clean)) == request


def _writable(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def test_an_error_can_always_be_written() -> None:
    line = encode_error(1, RpcError(-32603, "bad name \udcff", {"path": "\udcff"}))
    assert json.loads(line)["error"] == {"code": -32603, "message": "bad name ?"}
