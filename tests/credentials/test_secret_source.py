"""Secret sources of a start request."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.credentials.secret import MAX_VALUE_BYTES, REDACTED, Secret
from supervisor.credentials.source import (
    LookupSecret,
    SecretSource,
    SecretSourceError,
    StaticSecret,
    StoreReference,
    decode_secret_source,
)

OWN = "http://127.0.0.1:8000"
OTHER = "https://secret_box.example/v1/key?token=sk-in-url"


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ("sk-1", StaticSecret(Secret("sk-1"))),
        (REDACTED, StaticSecret(None)),
        ({"kind": "StaticSecret", "value": "sk-1", "description": "d"}, StaticSecret(Secret("sk-1"), "d")),
        ({"kind": "StaticSecret", "value": None}, StaticSecret(None)),
        ({"kind": "StaticSecret", "value": ""}, StaticSecret(None)),
        ({"value": "sk-1"}, StaticSecret(Secret("sk-1"))),
        (
            {
                "kind": "LookupSecret",
                "url": "/api/settings/secrets/FOO",
                "description": "d",
                "headers": {"A": "b"},
            },
            StoreReference("FOO", "d"),
        ),
        ({"url": "/api/settings/secrets/FOO?agent_profile_id=1"}, StoreReference("FOO")),
        ({"url": "/api/settings/secrets/F%4FO"}, StoreReference("FOO")),
        ({"url": f"{OWN}/api/settings/secrets/FOO"}, StoreReference("FOO")),
        ({"url": OTHER, "headers": {"A": "b"}}, LookupSecret(OTHER, {"A": "b"})),
        ({"url": "http://127.0.0.1:8001/api/settings/secrets/FOO", "headers": None, "extra": 1}, None),
    ],
)
def test_accepted(obj: Any, expected: SecretSource | None) -> None:
    decoded = decode_secret_source(obj, own_origins={OWN})
    assert decoded == (expected or LookupSecret(obj["url"]))


@pytest.mark.parametrize(
    ("obj", "loc", "kind"),
    [
        (1, (), "dict_type"),
        (None, (), "dict_type"),
        ({"kind": "FileSecret"}, ("kind",), "union_tag_invalid"),
        ({"kind": []}, ("kind",), "union_tag_invalid"),
        ({"kind": "StaticSecret", "value": 1}, ("value",), "string_type"),
        ({"value": "a", "description": 1}, ("description",), "string_type"),
        ({"kind": "LookupSecret"}, ("url",), "missing"),
        ({"url": 1}, ("url",), "string_type"),
        ({"url": OTHER, "headers": []}, ("headers",), "dict_type"),
        ({"url": OTHER, "headers": {"A": 1}}, ("headers", "A"), "string_type"),
        ({"url": "/api/settings"}, ("url",), "value_error"),
        ({"url": "/api/settings/secrets/a/b"}, ("url",), "value_error"),
        ({"url": "/api/settings/secrets/"}, ("url",), "value_error"),
        ({"url": f"{OWN}/alive"}, ("url",), "value_error"),
        ({"url": "file:///etc/passwd"}, ("url",), "value_error"),
        ({"url": "//secret_box.example/key"}, ("url",), "value_error"),
        ({"url": "http://"}, ("url",), "value_error"),
        ({"url": "http://[bad/"}, ("url",), "value_error"),
        ({"url": "http://[zz]/"}, ("url",), "value_error"),
        ({"url": "http://host.example:99999/"}, ("url",), "value_error"),
        ("sk-a\0b", (), "value_error"),
        ({"value": "sk-a\0b"}, ("value",), "value_error"),
        ({"kind": "StaticSecret", "value": "x" * MAX_VALUE_BYTES + "x"}, ("value",), "value_error"),
        ("sk-\ud800", (), "value_error"),
    ],
)
def test_refused(obj: Any, loc: tuple[str, ...], kind: str) -> None:
    with pytest.raises(SecretSourceError) as caught:
        decode_secret_source(obj, loc=("body", "secrets", "X"), own_origins={OWN})
    assert [(error.loc, error.type) for error in caught.value.errors] == [
        (("body", "secrets", "X", *loc), kind)
    ]


def test_nothing_secret_shows() -> None:
    static = decode_secret_source("sk-value")
    lookup = decode_secret_source({"url": OTHER, "headers": {"X-Key": "sk-header"}})
    assert "sk-" not in repr(static) + repr(lookup)
    with pytest.raises(SecretSourceError) as caught:
        decode_secret_source({"url": "ftp://x/?sk-value"})
    assert "sk-" not in str(caught.value)
    with pytest.raises(SecretSourceError) as caught:
        decode_secret_source("sk-a\0b")
    assert "sk-" not in str(caught.value)
