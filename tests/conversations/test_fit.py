"""Events that are too large for any client: what of them stays."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from supervisor.conversations.recording.bounds import truncation


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "EVENT_BYTES", 140_000)


def fitted(event: dict[str, Any]) -> dict[str, Any]:
    body = truncation.fitting(orjson.dumps(event))
    assert len(body) <= truncation.EVENT_BYTES
    shorter = orjson.loads(body)
    assert isinstance(shorter, dict)
    return shorter


def test_long_strings_keep_their_ends_and_short_ones_stay() -> None:
    half = 32 * 1024
    long = "a" * half + "x" * truncation.EVENT_BYTES + "z" * half
    exact = "e" * (64 * 1024)
    got = fitted({"id": "i", "exact": exact, "deep": [{"long": long}, 1, None], "n": 2.5})
    note = f"[... {truncation.EVENT_BYTES} characters cut: too large for an event ...]"
    assert got == {
        "id": "i",
        "exact": exact,
        "deep": [{"long": "a" * half + f"\n{note}\n" + "z" * half}, 1, None],
        "n": 2.5,
    }


@pytest.mark.parametrize(("count", "most"), [(15, 8 * 1024), (50, 2 * 1024)])
def test_many_strings_are_cut_shorter(count: int, most: int) -> None:
    strings = ["y" * (64 * 1024) for _ in range(count)]
    got = fitted({"id": "i", "strings": strings})["strings"]
    assert len(got) == count
    assert all(text.startswith("y" * (most // 2) + "\n[...") for text in got)
    assert all(text.endswith("\n" + "y" * (most // 2)) for text in got)


def test_names_of_properties_are_cut_too() -> None:
    (name,) = fitted({"k" * (2 * truncation.EVENT_BYTES): 1})
    assert name.startswith("k" * 1024)
    assert "characters cut" in name


def test_payloads_of_many_parts_are_replaced_and_the_rest_stays() -> None:
    parts = [[index] for index in range(20_000)]
    event = {
        "id": "i",
        "kind": "ActionEvent",
        "raw_input": parts,
        "content": [{"type": "text", "text": "t"}] * 5_000,
        "action": {"kind": "MCPToolAction", "data": {"parts": parts}},
        "list": [{"id": "first"}, {"id": "second"}],
        "value": "short",
        "tools": parts,
    }
    size = len(orjson.dumps(event))
    note = f"[left out: the event had {size} bytes, and at most {truncation.EVENT_BYTES} can be sent]"
    assert fitted(event) == {
        "id": "i",
        "kind": "ActionEvent",
        "raw_input": note,
        "content": [{"type": "text", "text": note}],
        "action": {"kind": "MCPToolAction", "data": {"truncated": note}},
        "list": [{"id": "first"}],
        "value": "short",
        "tools": [],
    }
