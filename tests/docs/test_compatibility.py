"""docs/compatibility.md: current, and every route of the peer is accounted for."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest

from scripts import compatibility
from scripts.compatibility import Verdict, compare, plain, reason_of, reduced, unaccounted
from tests.clients.design import DESIGN


def test_the_page_is_current_and_no_route_is_unaccounted_for() -> None:
    made = compatibility.made()
    assert unaccounted(made.verdicts) == [], "add reasons to docs/compatibility/reasons.toml"
    assert compatibility.DOCUMENT.read_text() == made.text, "run scripts/compatibility"


def test_every_route_of_the_peer_is_named_once() -> None:
    peer = json.loads(compatibility.PEER.read_text())["operations"]
    named = [each.route for each in compatibility.made().verdicts]
    assert named == list(peer)
    assert len(set(named)) == len(named) > 150


def document(*routes: tuple[str, str, dict[str, Any]], **schemas: Any) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for method, path, operation in routes:
        paths.setdefault(path, {})[method] = {"responses": {"200": {}}, **operation}
    return {"paths": paths, "components": {"schemas": schemas}}


def content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


ITEM = {"type": "object", "properties": {"a": {}, "b": {}}}
WHOLE = document(
    (
        "post",
        "/x/{one}",
        {
            "parameters": [{"name": "q", "in": "query"}, {"name": "one", "in": "path"}],
            "requestBody": content({"anyOf": [{"$ref": "#/components/schemas/Item"}, {"type": "null"}]}),
            "responses": {"201": content({"type": "array", "items": {"$ref": "#/components/schemas/Item"}})},
        },
    ),
    Item=ITEM,
)


def test_what_is_compared() -> None:
    assert reduced(WHOLE) == {
        "POST /x/{one}": {
            "parameters": ["q"],
            "body": ["a", "b"],
            "statuses": [201],
            "answer": ["[].a", "[].b"],
        }
    }


@pytest.mark.parametrize(
    ("ours", "kind", "words"),
    [
        (WHOLE, "same", ""),
        (document(("post", "/x/{other}", WHOLE["paths"]["/x/{one}"]["post"]), Item=ITEM), "same", ""),
        (document(("get", "/x/{one}", {})), "not served", ""),
        (document(("post", "/x/{one}", {"responses": {"401": {}, "501": {}}})), "501", "never"),
        (
            document(("post", "/x/{one}", {"responses": {"404": {}, "422": {}}})),
            "compatible",
            "always 404: never",
        ),
        (
            document(("post", "/x/{one}", {"responses": {"200": content(ITEM)}})),
            "compatible",
            "answers 200, the peer 201; parameters without `q`; of the body without `a`, `b`; "
            "of the answer without `[].a`, `[].b`",
        ),
    ],
)
def test_verdicts(ours: dict[str, Any], kind: str, words: str) -> None:
    (verdict,) = compare(reduced(WHOLE), reduced(ours), {"refused": {"/x/*": "never"}}, reduced(WHOLE))
    assert verdict == Verdict("POST /x/{one}", kind, words)
    assert bool(unaccounted([verdict])) is (kind == "not served")
    (shape,) = compare(reduced(WHOLE), reduced(ours), {}, (), reduced(WHOLE))
    assert (shape.kind == "same fields") is (kind == "same")
    (without,) = compare(reduced(WHOLE), reduced(ours), {}, ())
    assert (without.kind == "alike") is (kind == "same")
    assert bool(unaccounted([without])) is (kind in ("not served", "501") or "never" in words)


def test_what_is_called_same_was_compared() -> None:
    """In a step that succeeded before the peer's server, and where Ostler does not refuse by design."""
    kept, recording = (
        json.loads(compatibility.PEER.read_text()),
        json.loads(compatibility.RECORDING.read_text()),
    )
    same = {each.route for each in compatibility.made().verdicts if each.kind == "same"}
    assert same <= compatibility.proven(kept["operations"], recording)
    refused = [row.label for row in DESIGN if isinstance(row.ostler, dict) and "status" in row.ostler]
    steps = [each for each in recording["steps"] if any(fnmatchcase(each["label"], row) for row in refused)]
    assert len(steps) >= len(refused) > 3
    assert same.isdisjoint(compatibility.proven(kept["operations"], {"steps": steps}))


def test_a_step_proves_the_route_that_it_asked_with_success() -> None:
    peer = dict.fromkeys(("GET /x/{one}", "GET /x/{one}/y/", "POST /x/{one}", "GET /x"))
    asked = ["GET /x/a 404", "GET /x/<id>/y 200", "POST /x/a%2Fb 201", "GET /x/a/z 200", "GET /x?q 200"]
    assert compatibility.proven(peer, {"steps": [{"requests": asked}]}) == {"POST /x/{one}"}


def test_a_step_that_compares_fields_alone_proves_no_values() -> None:
    peer = dict.fromkeys(("GET /x", "GET /y", "GET /z"))
    steps = [
        {"requests": ["GET /x 200"], "fields": True},
        {"requests": ["GET /y 200"], "fields": True},
        {"requests": ["GET /y 200"]},
    ]
    assert compatibility.proven(peer, {"steps": steps}) == {"GET /y"}
    assert compatibility.proven(peer, {"steps": steps}, by_fields=True) == {"GET /x", "GET /y"}


def test_no_step_that_says_only_what_kind_of_thing_came_proves_values() -> None:
    """Such as `Array.isArray` or the names of fields, which an empty list and wrong values have, too."""
    steps = json.loads(compatibility.RECORDING.read_text())["steps"]
    asking = [each for each in steps if "value" in each and each["requests"]]
    values = {each["label"]: each["value"] for each in asking if not each.get("fields")}
    assert not [
        label for label, value in values.items() if type(value) is bool or value in ("object", [], {})
    ]
    assert sum(bool(each.get("fields")) for each in steps) > 20
    assert len(values) > 150


def test_the_most_precise_reason_counts() -> None:
    table = {"/x*": "one", "/x/y*": "two", "POST /x/y/z": "three"}
    found = [reason_of(each, table) for each in ("GET /x", "GET /x/y/z", "POST /x/y/z", "GET /z")]
    assert found == ["one", "two", "three", ""]
    assert plain("GET /x/{a}/{b}/") == plain("GET /x/{c}/{d}")
